import{a,b,c}from"./chunk-5EWEVNVS.js";import"./chunk-KSILYPZW.js";import"./chunk-3WWKDJLX.js";export{b as Asks,c as CameraView,a as Lend};
