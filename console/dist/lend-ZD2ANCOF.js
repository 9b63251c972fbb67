import{a,b,c}from"./chunk-CYMU7H7X.js";import"./chunk-PASM4MCJ.js";import"./chunk-S56LLT36.js";import"./chunk-6JIUEXPB.js";import"./chunk-KTGPZJRJ.js";export{b as Asks,c as CameraView,a as Lend};
