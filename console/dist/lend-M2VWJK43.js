import{a,b,c}from"./chunk-6XP6QTII.js";import"./chunk-7GWIEVP3.js";import"./chunk-S56LLT36.js";import"./chunk-6JIUEXPB.js";import"./chunk-KTGPZJRJ.js";export{b as Asks,c as CameraView,a as Lend};
