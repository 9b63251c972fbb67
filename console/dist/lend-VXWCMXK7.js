import{a,b,c}from"./chunk-OP7NXWFA.js";import"./chunk-VF7WNEGA.js";import"./chunk-N7XUJNNO.js";export{b as Asks,c as CameraView,a as Lend};
