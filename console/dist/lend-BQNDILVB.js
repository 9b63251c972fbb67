import{a,b,c}from"./chunk-HN4WWJLI.js";import"./chunk-CVFTQ7IA.js";import"./chunk-SHPV5EBL.js";export{b as Asks,c as CameraView,a as Lend};
