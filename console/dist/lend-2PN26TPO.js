import{a,b,c}from"./chunk-F7X4HTCG.js";import"./chunk-V6HATV5F.js";import"./chunk-SHPV5EBL.js";export{b as Asks,c as CameraView,a as Lend};
