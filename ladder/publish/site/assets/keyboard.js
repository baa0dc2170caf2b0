'use strict';

/* asv's buttons are links without an address: with this, Enter and the space bar press them. */
document.addEventListener('keydown', function (event) {
    var target = event.target;
    if ((event.key === 'Enter' || event.key === ' ') && target.getAttribute('role') === 'button'
            && !target.hasAttribute('href')) {
        event.preventDefault();
        target.click();
    }
});
