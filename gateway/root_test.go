package gateway

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"
)

// forHosts returns a change of a token: it permits the hosts with these names.
func forHosts(patterns ...string) func(*auth.Client) {
	return func(c *auth.Client) { c.Hosts = patterns }
}

// dialRoot opens a WebSocket at a path of the relay, such as the root.
func (w *world) dialRoot(path string, options websocket.DialOptions) (*clientEnd, *http.Response, error) {
	options.HTTPClient = &http.Client{Transport: handshake{w.server.Handler()}}
	ws, response, err := websocket.Dial(context.Background(), "ws://relay"+path, &options)
	if err != nil {
		return nil, response, err
	}
	c := &clientEnd{w: w, ws: ws}
	w.running.Go(c.readLoop)
	return c, response, nil
}

// A WebSocket at the relay's root reaches the only host that its token names, wherever
// the request has the token. Clients such as VS Code's bridge cannot configure a path.
func TestUpgradeAtRootReachesTheOnlyHost(t *testing.T) {
	for name, of := range map[string]func(token string) (path string, options websocket.DialOptions){
		"tkn": func(token string) (string, websocket.DialOptions) {
			return "/?" + url.Values{"tkn": {token}}.Encode(), websocket.DialOptions{}
		},
		"access_token": func(token string) (string, websocket.DialOptions) {
			return "/?" + url.Values{"access_token": {token}}.Encode(), websocket.DialOptions{}
		},
		"header": func(token string) (string, websocket.DialOptions) {
			return "/", websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}}
		},
		"subprotocol": func(token string) (string, websocket.DialOptions) {
			return "/", websocket.DialOptions{Subprotocols: []string{"ahp", "bearer." + token}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{})
				path, options := of(w.token(forHosts(testHost)))
				c, _, err := w.dialRoot(path, options)
				if err != nil {
					t.Fatal(err)
				}
				c.send(c.request(1, "initialize"))
				host := w.hostConn(1)
				host.accept(1)
				c.wantMessages(answerTo(1))
			})
		})
	}
}

// At the root, only a WebSocket with a token for exactly one host reaches a host. The
// relay answers other requests as the console.
func TestRootWithoutTheOnlyHostIsTheConsole(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		one := w.token(forHosts(testHost))
		upgrade := func(path, token string) *http.Request {
			r := w.upgrade(token)
			r.URL.Path = path
			if token == "" {
				r.Header.Del("Authorization")
			}
			return r
		}
		plain := upgrade("/", one)
		plain.Header.Del("Upgrade")
		plain.Header.Del("Connection")
		for name, test := range map[string]struct {
			request *http.Request
			want    int
		}{
			"no upgrade":        {plain, http.StatusOK},
			"no token":          {upgrade("/", ""), http.StatusOK},
			"all hosts":         {upgrade("/", w.token(nil)), http.StatusOK},
			"a pattern":         {upgrade("/", w.token(forHosts("lap*"))), http.StatusOK},
			"two hosts":         {upgrade("/", w.token(forHosts(testHost, "desktop"))), http.StatusOK},
			"an invalid token":  {upgrade("/", "x"), http.StatusUnauthorized},
			"a page of its own": {upgrade("/manifest.webmanifest", one), http.StatusOK},
			"no such page":      {upgrade("/none", one), http.StatusNotFound},
		} {
			response, err := handshake{w.server.Handler()}.RoundTrip(test.request)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.want {
				t.Errorf("%s: HTTP %d; want %d", name, response.StatusCode, test.want)
			}
			_ = response.Body.Close()
		}
	})
}

// A token that names a host twice reaches the host at the root. A token for a host that
// has never enrolled is refused, as at the host's own path.
func TestRootTakesAHostTwiceNamed(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		dial := func(hosts ...string) *clientEnd {
			c, _, err := w.dialRoot("/?tkn="+w.token(forHosts(hosts...)), websocket.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		dial(testHost, testHost).wantOpen()
		dial("nowhere").wantClosed(ahp.CloseUnknownHost, closeReason(ahp.CloseUnknownHost, "no host-agent has ever enrolled under that name"))
	})
}
