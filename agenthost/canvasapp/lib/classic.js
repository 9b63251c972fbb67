// A script of the old kind: it runs before the document is there.
window.classicRan = document.body === null;
