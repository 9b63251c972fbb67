import{a,b,c}from"./chunk-OEVFFRAL.js";import"./chunk-4MU7FMXS.js";import"./chunk-N3SQYL4Z.js";export{b as Asks,c as CameraView,a as Lend};
