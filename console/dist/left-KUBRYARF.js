import{a,b,c}from"./chunk-3HBTWYR4.js";import"./chunk-TEZUGNUH.js";import"./chunk-H4BGL6ZK.js";import"./chunk-G6M2KK7W.js";import"./chunk-LGZM63N3.js";export{a as Conflict,c as Leaving,b as lives};
