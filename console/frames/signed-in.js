// Where an authorization server sends people back to. What it says is handed to
// the page that has sent them there, and to no other: only that page knows the
// state, which names the channel, and only it can make a token of the code.
'use strict';

const patience = 5000; // ms for that page to say that it has it
const said = (text) => { document.getElementById('said').textContent = text; };

const params = new URLSearchParams(location.search);
history.replaceState(null, '', location.pathname); // the code must not stay there
const state = params.get('state');
if (state === null) said('There is nothing to be done here. You can close this window.');
else {
  const channel = new BroadcastChannel(`sign-in ${state}`);
  const late = setTimeout(() => said('The page that wanted to sign in is not there any more. Go back to it, and begin again.'), patience);
  channel.onmessage = ({ data }) => {
    if (data !== 'taken') return;
    clearTimeout(late);
    channel.close();
    said('The page has what it needs. You can close this window.');
    window.close();
  };
  channel.postMessage({ code: params.get('code'), error: params.get('error'), error_description: params.get('error_description'), iss: params.get('iss') });
}
