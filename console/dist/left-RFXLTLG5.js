import{a,b,c}from"./chunk-I6SHYECT.js";import"./chunk-3CP3KHHY.js";import"./chunk-6JIUEXPB.js";import"./chunk-KTGPZJRJ.js";export{a as Conflict,c as Leaving,b as lives};
