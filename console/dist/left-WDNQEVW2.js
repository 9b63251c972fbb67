import{a,b,c}from"./chunk-72KXOZ6L.js";import"./chunk-TQXFYKRS.js";import"./chunk-77DNZSR3.js";import"./chunk-RKNR2IVN.js";import"./chunk-RAUFCK7I.js";export{a as Conflict,c as Leaving,b as lives};
