package hostagent

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// An authStandIn is an authorization server in memory. It supports the device flow, unless noCode
// is set.
type authStandIn struct {
	mu     sync.Mutex
	posts  []url.Values // the forms in received requests
	places []string     // the URLs of received requests
	issuer string       // the issuer in its metadata; "" for its own
	noCode bool         // the server redirects browsers instead of giving a code
	polls  []string     // the answers to polls for a token, in order; the last repeats
}

const granted = `{"access_token":"very-secret","token_type":"bearer"}`

// RoundTrip implements [http.RoundTripper].
func (a *authStandIn) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places = append(a.places, r.URL.String())
	w := httptest.NewRecorder()
	body := ""
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(b))
		a.posts, body = append(a.posts, form), form.Get("grant_type")
	}
	switch {
	case r.URL.Host != "auth.example":
		w.WriteHeader(http.StatusNotFound)
	case r.URL.Path == "/.well-known/oauth-authorization-server/login" && !a.noCode:
		fmt.Fprintf(w, `{"issuer":%q,"device_authorization_endpoint":"https://auth.example/code","token_endpoint":"https://auth.example/token"}`, cmp.Or(a.issuer, "https://auth.example/login"))
	case r.URL.Path == "/.well-known/oauth-authorization-server/login" && a.noCode:
		fmt.Fprint(w, `{"issuer":"https://auth.example/login","authorization_endpoint":"https://auth.example/authorize?a=b","token_endpoint":"https://auth.example/token","code_challenge_methods_supported":["plain","S256"]}`)
	case r.URL.Path == "/token" && body == "authorization_code":
		fmt.Fprint(w, a.polls[0])
	case r.URL.Path == "/code":
		fmt.Fprint(w, `{"device_code":"dev","user_code":"WDJB-MJHT","verification_uri":"https://auth.example/device","expires_in":900,"interval":5}`)
	case r.URL.Path == "/token" && body == deviceGrant:
		said := a.polls[0]
		if len(a.polls) > 1 {
			a.polls = a.polls[1:]
		}
		if strings.Contains(said, "error") {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, said)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result(), nil
}

// asked returns how many requests the server got, and how many of them asked for a token.
func (a *authStandIn) asked() (all, polls int) {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.posts {
		if f.Get("grant_type") == deviceGrant {
			polls++
		}
	}
	return len(a.places), polls
}

// hostWithResource is a host whose agent names three resources: a resource with a client id,
// another without, and a third whose servers are addresses inside the network.
func hostWithResource(env ahp.Envelope) string {
	result := "null"
	switch string(env.Method) {
	case "initialize":
		result = `{"protocolVersion":"1.0.0","serverSeq":1,"snapshots":[]}`
	case "subscribe":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"fromSeq":1,"state":{"agents":[{"provider":"a","protectedResources":[`+
			`{"resource":"https://api.example","authorization_servers":["https://auth.example/login"],"scopes_supported":["read"],"oauthClient":{"clientId":"the-host"}},`+
			`{"resource":"https://other.example","authorization_servers":["https://auth.example/login"]},`+
			`{"resource":"https://inner.example","authorization_servers":["http://169.254.169.254/login","http://127.0.0.1.evil.example"],"oauthClient":{"clientId":"the-host"}}]}]}}}`, env.Channel)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
}

// signsIn runs test with hostWithResource and this authorization server. enter connects a client
// that is subscribed to the root.
func signsIn(t *testing.T, auth *authStandIn, test func(w *world, enter func(access string) *remote)) {
	t.Helper()
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = hostWithResource })
		w.agent.cfg.HTTP = &http.Client{Transport: auth}
		test(w, func(access string) *remote {
			r := w.openAs(w.relay, routing.Open{ID: "c-" + access, Subject: "ada", Access: access})
			r.send(greeting("initialize", "client-"+access))
			r.subscribes(ahp.RootChannel)
			return r
		})
	})
}

const wantsExample = `{"channel":"ahp-root://","resource":"https://api.example"}`

// TestHostAgentSignsInByCode has a client request a sign-in. The client must get the code to type.
// Then the host must get the token on this client's connection, and the client must never see it.
func TestHostAgentSignsInByCode(t *testing.T) {
	auth := &authStandIn{polls: []string{`{"error":"authorization_pending"}`, `{"error":"slow_down"}`, granted}}
	signsIn(t, auth, func(w *world, enter func(string) *remote) {
		r := enter("write")
		got := r.asks("relay/signIn", wantsExample)
		if !strings.Contains(got, `"code":"WDJB-MJHT"`) || !strings.Contains(got, `"where":"https://auth.example/device"`) || !strings.Contains(got, `"site":"auth.example"`) {
			t.Fatalf("the client gets %s; want the code, the address and the site", got)
		}
		host := w.hostSide()
		time.Sleep(18 * time.Second) // two polls happen; the answer to the second demands longer pauses
		if _, polls := auth.asked(); polls != 2 {
			t.Errorf("the host-agent polled the authorization server %d times in 18 s; want 2", polls)
		}
		time.Sleep(10 * time.Second)
		told := r.hear()
		if !strings.Contains(told, `"relay/signedIn"`) || strings.Contains(told, "error") {
			t.Errorf("after the sign-in, the client receives %s; want relay/signedIn without an error", told)
		}
		gives := func(m string) bool {
			return strings.Contains(m, `"method":"authenticate"`) && strings.Contains(m, `"token":"very-secret"`) && strings.Contains(m, `"resource":"https://api.example"`)
		}
		if !slices.ContainsFunc(host.messages(), gives) {
			t.Errorf("the host receives %q; want authenticate with the token", host.messages())
		}
		if slices.ContainsFunc(host.messages(), func(m string) bool { return strings.Contains(m, "relay/signIn") }) {
			t.Error("the host receives relay/signIn; want the host-agent to answer it")
		}
		if strings.Contains(got+told, "very-secret") {
			t.Error("the client receives the token; want it hidden")
		}
		auth.mu.Lock()
		defer auth.mu.Unlock()
		if first := auth.posts[0]; first.Get("client_id") != "the-host" || first.Get("scope") != "read" || first.Get("resource") != "https://api.example" {
			t.Errorf("the server is asked for a code with %v; want the host's client ID, scope and resource", first)
		}
	})
}

// TestSignInIsRefused lists requests for a sign-in that the host-agent must refuse without asking
// an authorization server.
func TestSignInIsRefused(t *testing.T) {
	for _, c := range []struct{ name, access, params, want string }{
		{"below operate", "approve", wantsExample, "needs the level operate"},
		{"a channel without a subscription", "write", `{"channel":"s:/9","resource":"https://api.example"}`, "subscribe to this channel first"},
		{"a server of the client's own", "write", `{"channel":"ahp-root://","resource":"https://evil.example","authorization_servers":["https://evil.example"],"oauthClient":{"clientId":"x"}}`, "names no such resource"},
		{"no client id", "write", `{"channel":"ahp-root://","resource":"https://other.example"}`, "names no client id"},
		{"addresses inside", "write", `{"channel":"ahp-root://","resource":"https://inner.example"}`, "offers no sign-in by code"},
		{"no resource", "write", `{"channel":"ahp-root://"}`, "want {channel, resource}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			auth := &authStandIn{polls: []string{granted}}
			signsIn(t, auth, func(w *world, enter func(string) *remote) {
				if got := enter(c.access).asks("relay/signIn", c.params); !strings.Contains(got, c.want) {
					t.Errorf("the client gets %s; want %q", got, c.want)
				}
				if all, _ := auth.asked(); all != 0 {
					t.Errorf("the authorization server got %d requests; want 0", all)
				}
			})
		})
	}
}

// TestSignInsHaveARate requests sign-ins on several connections of a person. Above the rate, the
// host-agent must refuse without asking a server. Another person may still sign in, and the first
// again after signInEvery.
func TestSignInsHaveARate(t *testing.T) {
	auth := &authStandIn{polls: []string{`{"error":"authorization_pending"}`}}
	signsIn(t, auth, func(w *world, enter func(string) *remote) {
		joins := func(id, subject string) *remote {
			r := w.openAs(w.relay, routing.Open{ID: id, Subject: subject, Access: "write"})
			r.send(greeting("initialize", "client-"+id))
			r.subscribes(ahp.RootChannel)
			return r
		}
		first, second, other := enter("write"), joins("second", "ada"), joins("other", "ben")
		for range signInAtOnce - 1 {
			first.asks("relay/signIn", wantsExample)
		}
		if got := second.asks("relay/signIn", wantsExample); !strings.Contains(got, "WDJB-MJHT") {
			t.Fatalf("the last request within the rate gets %s; want a code", got)
		}
		before, _ := auth.asked()
		for _, r := range []*remote{first, second} {
			if got := r.asks("relay/signIn", wantsExample); !strings.Contains(got, `"code":4290`) || !strings.Contains(got, "try again in 1") {
				t.Errorf("a request beyond the rate gets %s; want error 4290, try again", got)
			}
		}
		if after, _ := auth.asked(); after != before {
			t.Errorf("beyond the rate, the authorization servers got %d requests; want 0", after-before)
		}
		if got := other.asks("relay/signIn", wantsExample); !strings.Contains(got, "WDJB-MJHT") {
			t.Errorf("a different person gets %s; want a code", got)
		}
		time.Sleep(signInEvery)
		if got := first.asks("relay/signIn", wantsExample); !strings.Contains(got, "WDJB-MJHT") {
			t.Errorf("%v later, the person gets %s; want a code", signInEvery, got)
		}
	})
}

// TestServersTextIsShortenedBetweenCharacters: a server's long text ends before the character
// that does not fit whole.
func TestServersTextIsShortenedBetweenCharacters(t *testing.T) {
	for _, text := range []string{strings.Repeat("é", maxText), "x" + strings.Repeat("é", maxText)} {
		if got := clean(text); !utf8.ValidString(got) || len(got) < maxText-1 || len(got) > maxText {
			t.Errorf("clean = %q; want %d bytes or one less, of valid UTF-8", got, maxText)
		}
	}
}

// TestSignInEnds cancels a sign-in, or replaces it by another. The host-agent must not ask for its
// token any more.
func TestSignInEnds(t *testing.T) {
	for name, end := range map[string]func(r *remote){
		"cancelled": func(r *remote) { r.asks("relay/signInCancel", `{"channel":"ahp-root://"}`) },
		"replaced": func(r *remote) {
			r.asks("relay/signIn", `{"channel":"ahp-root://","resource":"https://other.example"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			auth := &authStandIn{polls: []string{granted}}
			signsIn(t, auth, func(w *world, enter func(string) *remote) {
				r := enter("write")
				r.asks("relay/signIn", wantsExample)
				end(r)
				time.Sleep(time.Minute)
				if _, polls := auth.asked(); polls != 0 {
					t.Errorf("the host-agent polled the authorization server %d times after the end; want 0", polls)
				}
				if got := r.hear(); strings.Contains(got, "signedIn") {
					t.Errorf("the client receives %s; want no relay/signedIn", got)
				}
			})
		})
	}
}

// TestSignInFails lets sign-ins fail in different ways. The client must get the reason each time.
func TestSignInFails(t *testing.T) {
	for _, c := range []struct {
		name, want string
		auth       *authStandIn
		host       func(ahp.Envelope) string
	}{
		{"denied", "auth.example: access_denied", &authStandIn{polls: []string{`{"error":"access_denied"}`}}, nil},
		{"expired", "the code has expired", &authStandIn{polls: []string{`{"error":"authorization_pending"}`}}, nil},
		{"a different issuer", "metadata of a different issuer", &authStandIn{issuer: "https://evil.example"}, nil},
		{"the host refuses", "the host does not take the token: no", &authStandIn{polls: []string{granted}}, func(env ahp.Envelope) string {
			if string(env.Method) == "authenticate" {
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32007,"message":"no"}}`, env.ID)
			}
			return hostWithResource(env)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			signsIn(t, c.auth, func(w *world, enter func(string) *remote) {
				if c.host != nil {
					w.host.set(func() { w.host.answers = c.host })
				}
				r := enter("write")
				got := r.asks("relay/signIn", wantsExample)
				time.Sleep(maxSignIn)
				if got += r.hear(); !strings.Contains(got, c.want) {
					t.Errorf("the client receives %s; want %q", got, c.want)
				}
			})
		})
	}
}

// TestSignInTakesResourcesOfTheHostOnly reads session states, some with resources in text that
// clients, tools or models have written. findResource must ignore those, because they must not
// choose the authorization server.
func TestSignInTakesResourcesOfTheHostOnly(t *testing.T) {
	const named = `{"resource":"r","authorization_servers":["https://a"],"oauthClient":{"clientId":"c"}}`
	const server = `{"type":"mcpServer","state":{"kind":"authRequired","resource":{"resource":"r","authorization_servers":["https://a"]},"oauthClient":{"clientId":"c"}}}`
	for _, c := range []struct {
		state string
		want  bool
	}{
		{`{"agents":[{"protectedResources":[` + named + `]}]}`, true},
		{`{"customizations":[` + server + `]}`, true},
		{`{"customizations":[{"type":"plugin","children":[` + server + `]}]}`, true},
		{`{"turns":[{"message":{"text":"","_meta":` + named + `}}]}`, false},
		{`{"activeTurn":{"responseParts":[{"toolCall":{"structuredContent":` + named + `}}]}}`, false},
		{`{"activeClient":{"customizations":[` + server + `]}}`, false},
		{`{"agents":[{"_meta":` + named + `}],"_meta":` + named + `}`, false},
		{`{"customizations":[{"_meta":` + server + `}]}`, false},
	} {
		found, err := findResource([]byte(c.state), "r")
		if (err == nil) != c.want || c.want && found.client.ID != "c" {
			t.Errorf("%s: found %+v, %v; want %v", c.state, found, err, c.want)
		}
	}
}

// FuzzSignInState searches states in any form for a resource. If findResource finds a resource, it
// must name a server.
func FuzzSignInState(f *testing.F) {
	f.Add([]byte(`{"agents":[{"protectedResources":[{"resource":"r","authorization_servers":["https://a"],"oauthClient":{"clientId":"c"}}]}]}`))
	f.Add([]byte(`{"customizations":[{"children":[{"state":{"resource":{"resource":"r","authorization_servers":["https://a"]},"oauthClient":{"clientId":"c"}}}]}]}`))
	f.Add([]byte(`{"state":{"oauthClient":{"clientId":1},"resource":{"resource":"r","authorization_servers":[1]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if found, err := findResource(data, "r"); err == nil && len(found.servers) == 0 {
			t.Errorf("findResource = %+v; want servers", found)
		}
		_ = askable(string(data), string(data))
		_ = metadataPlaces(string(data))
	})
}
