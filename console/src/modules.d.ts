declare module '*.css';
declare module 'highlight.js/*';
