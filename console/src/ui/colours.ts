// The 16 colours of terminals: each has a contrast of at least 4.5 with the background.
const names = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
const colours = (all: string) => Object.fromEntries(all.split(' ').map((c, i) => [i < 8 ? names[i] : `bright${names[i - 8][0].toUpperCase()}${names[i - 8].slice(1)}`, c]));
export const ansi = {
  light: colours('#1c2128 #a31d16 #14602f #6f4a00 #1d4fa8 #83287f #0b5f66 #4b5560 #3a424c #b3261e #17693c #7d5300 #2659b8 #93308e #0f6a71 #5b6572'),
  dark: colours('#8b96a3 #ff9b93 #6fd598 #f0c067 #8fb8ff #e3a5f0 #5fd0d6 #d5dae0 #9aa5b1 #ffb3ac #8fe3b0 #f6d58f #abc9ff #eec0f7 #86dee3 #ffffff'),
};
