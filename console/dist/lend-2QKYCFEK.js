import{a,b,c}from"./chunk-DN3U2ST4.js";import"./chunk-CXBND6S2.js";import"./chunk-N3SQYL4Z.js";export{b as Asks,c as CameraView,a as Lend};
