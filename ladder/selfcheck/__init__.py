"""The project's checks of itself: does the harness see what it should, do readers hold, are kernels clean?"""
