import{a,b,c}from"./chunk-FRPJVEUA.js";import"./chunk-SRR734JF.js";import"./chunk-SXJRC5RH.js";export{b as Asks,c as CameraView,a as Lend};
