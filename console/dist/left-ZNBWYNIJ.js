import{a,b,c}from"./chunk-E4YSHDY6.js";import"./chunk-FTF772VW.js";import"./chunk-LZFCWU4M.js";import"./chunk-DBHRO7VJ.js";import"./chunk-Q7XXQ72Z.js";export{a as Conflict,c as Leaving,b as lives};
