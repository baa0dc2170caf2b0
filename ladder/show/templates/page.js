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

    var boxes = Array.prototype.slice.call(document.querySelectorAll('.scroll'));
    var mark = function () {
        boxes.forEach(function (each) { each.classList.toggle('cut', each.scrollWidth > each.clientWidth + 1); });
    };
    mark();
    window.addEventListener('resize', mark);
    document.addEventListener('toggle', mark, true);

    document.querySelectorAll('[data-since]').forEach(function (input) {
        var show = function () {
            var times = Array.prototype.slice.call(input.closest('section').querySelectorAll('tbody time')), shown = 0;
            times.forEach(function (each) {
                each.closest('tr').hidden = each.textContent < input.value;
                shown += each.textContent < input.value ? 0 : 1;
            });
            input.closest('p').querySelector('output').textContent = shown + ' of ' + times.length;
        };
        input.addEventListener('input', show);
        show();
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
