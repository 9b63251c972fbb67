import{a,b,c}from"./chunk-7DLSVFVD.js";import"./chunk-FTF772VW.js";import"./chunk-LZFCWU4M.js";import"./chunk-DBHRO7VJ.js";import"./chunk-Q7XXQ72Z.js";export{a as Conflict,c as Leaving,b as lives};
