import{a,b,c}from"./chunk-NWUHDMPX.js";import"./chunk-4JBPSHDA.js";import"./chunk-SHPV5EBL.js";export{b as Asks,c as CameraView,a as Lend};
