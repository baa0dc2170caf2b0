'use strict';

/* Folds open and close together, and all of them for paper; files are saved from the data in the page. */
(function () {
    var folds = function () { return Array.prototype.slice.call(document.querySelectorAll('details')); };
    var closed = [];

    document.querySelectorAll('[data-open]').forEach(function (button) {
        button.addEventListener('click', function () {
            folds().forEach(function (each) { each.open = button.dataset.open === 'true'; });
        });
    });
    window.addEventListener('beforeprint', function () {
        closed = folds().filter(function (each) { return !each.open && !each.classList.contains('aside'); });
        closed.forEach(function (each) { each.open = true; });
    });
    window.addEventListener('afterprint', function () {
        closed.forEach(function (each) { each.open = false; });
    });

    document.querySelectorAll('[data-file]').forEach(function (button) {
        button.addEventListener('click', function () {
            var name = button.dataset.file, data = JSON.parse(document.getElementById('data').textContent);
            var text = JSON.stringify(data[name], null, 1) + '\n', link = document.createElement('a');
            link.href = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
            link.download = name.split('/').pop();
            link.click();
            setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
        });
    });
})();
