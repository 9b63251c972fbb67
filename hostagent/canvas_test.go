package hostagent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

const (
	board   = "ahp-canvas:/1" // a canvas of the session sharing
	sharing = "ahp-session:/s"
)

// A canvasHost is a host with the canvas board. It serves no content itself: canvasReadResource
// fails.
type canvasHost struct {
	state  string // the canvas's state as JSON; "" after the canvas was closed
	replay string // the actions in the host's answer to reconnect, as JSON separated by commas
	lost   string // the channels that a client loses at reconnect, as JSON separated by commas
}

// seq is the last serverSeq that a host in these tests has used.
var seq atomic.Int64

func (h *canvasHost) answers(env ahp.Envelope) string {
	result := "{}"
	switch method := string(env.Method); {
	case method == "ping":
		result = "null"
	case method == "subscribe" && string(env.Channel) == board && h.state == "":
		return failure(env, -32008, "Canvas not open")
	case method == "subscribe" && string(env.Channel) == board:
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"state":%s,"fromSeq":%d}}`, board, h.state, seq.Add(1))
	case method == "subscribe" && h.state == "":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"openCanvases":[]},"fromSeq":%d}}`, env.Channel, seq.Add(1))
	case method == "subscribe":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"openCanvases":[{"instanceId":"i","channel":%q}]},"fromSeq":%d}}`, env.Channel, board, seq.Add(1))
	case method == "reconnect":
		result = fmt.Sprintf(`{"type":"replay","actions":[%s],"missing":[%s]}`, h.replay, h.lost)
	case method == "canvasReadResource":
		return failure(env, -32601, "Method not found")
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
}

func failure(env ahp.Envelope, code int, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, env.ID, code, message)
}

// stateAt returns a canvas's state as JSON. The canvas's content is at url.
func stateAt(url string) string {
	return fmt.Sprintf(`{"instanceId":"i","canvasId":"c","provider":{"kind":"server"},"availability":"ready","url":%q}`, url)
}

// site starts a web server on the loopback interface, which answers each request with name.
func site(t *testing.T, name string) (url string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(name)) }))
	s.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(s.Close)
	return s.URL
}

// inCanvasWorld runs test in a world with a host that has the canvas board with this state.
func inCanvasWorld(t *testing.T, state string, test func(w *world, host *canvasHost)) {
	inWorld(t, func(w *world) {
		host := &canvasHost{state: state}
		w.host.set(func() { w.host.answers = host.answers })
		test(w, host)
	})
}

// hear waits until nothing happens, and returns the client's messages since the last call.
func (r *remote) hear() (got string) {
	synctest.Wait()
	r.note(func() { got = r.got.String(); r.got.Reset() })
	return got
}

// asks sends a request from the client, and returns all messages that the client then gets.
func (r *remote) asks(method, params string) string {
	r.w.Helper()
	r.hear()
	r.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params))
	return r.hear()
}

// initializes opens a connection and sends initialize with this clientId.
func (w *world) initializes(clientID string) *remote {
	r := w.open()
	r.asks("initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"protocolVersions":["0.9.0"]}`, clientID))
	return r
}

// resumes opens a connection and sends reconnect with this clientId and these subscriptions.
func (w *world) resumes(clientID string, subscriptions ...string) *remote {
	r := w.open()
	list, _ := json.Marshal(subscriptions)
	r.asks("reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"lastSeenServerSeq":1,"subscriptions":%s}`, clientID, list))
	return r
}

func (r *remote) subscribes(channel string) string {
	return r.asks("subscribe", fmt.Sprintf(`{"channel":%q}`, channel))
}

// reads requests the canvas's root with canvasReadResource. It returns the content, or the error's
// code and text.
func (r *remote) reads() string {
	r.w.Helper()
	got := r.asks("canvasReadResource", `{"channel":"`+board+`","uri":"ahp-canvas-content:/i/"}`)
	var answer struct {
		ID     int
		Result struct{ Contents []struct{ Text string } }
		Error  struct {
			Code    int
			Message string
		}
	}
	if err := json.Unmarshal([]byte(got), &answer); err != nil || answer.ID != 7 {
		r.w.Fatalf("the client got %s; want the answer to request 7", got)
	}
	if len(answer.Result.Contents) == 1 {
		return answer.Result.Contents[0].Text
	}
	return fmt.Sprint(answer.Error.Code, " ", answer.Error.Message)
}

func (r *remote) wantRead(when, want string) {
	r.w.Helper()
	if got := r.reads(); !strings.HasPrefix(got, want) {
		r.w.Errorf("%s: %s; want %s", when, got, want)
	}
}

// update returns the params of an action that changes the canvas's URL. more holds
// further members of the params: "", or JSON that begins with a comma.
func update(url, more string) string {
	return fmt.Sprintf(`{"channel":%q,"serverSeq":%d,"action":{"type":"canvas/updated","url":%q}%s}`, board, seq.Add(1), url, more)
}

func notify(params string) string {
	if !strings.Contains(params, "serverSeq") {
		params = fmt.Sprintf(`{"serverSeq":%d,%s`, seq.Add(1), params[1:])
	}
	return `{"jsonrpc":"2.0","method":"action","params":` + params + `}`
}

// TestClientsDoNotOpenPorts dispatches a canvas address from a client. The host repeats the action
// in each form. The client must get the action unchanged, and no client may read content at this
// address.
func TestClientsDoNotOpenPorts(t *testing.T) {
	own, secret := site(t, "own"), site(t, "secret")
	const origin = `,"origin":{"clientId":"mallory","clientSeq":1}`
	echoes := map[string]string{
		"rejected":                      origin + `,"rejectionReason":"no"`,
		"rejected, nobody's":            `,"rejectionReason":"no"`,
		"rejected, and said to be null": `,"origin":null,"rejectionReason":"no"`,
		"accepted":                      origin,
		"with escapes":                  `,"or\u0069gin":{"clientId":"mallory"}`,
		"with an origin twice":          `,"origin":{"clientId":"mallory"},"origin":null`,
		"of an origin that is odd":      `,"origin":""`,
	}
	for name, more := range echoes {
		for _, replayed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, replayed %v", name, replayed), func(t *testing.T) {
				inCanvasWorld(t, stateAt(own), func(w *world, host *canvasHost) {
					c := w.initializes("mallory")
					c.subscribes(board)
					c.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":` + strings.Replace(update(secret, ""), "serverSeq", "clientSeq", 1) + `}`)
					echo := notify(update(secret, more))
					if replayed {
						host.replay = update(secret, more)
						c = w.resumes("mallory", board)
					} else {
						c.hear()
						if w.hostSide().toUs <- echo; c.hear() != echo {
							t.Error("the client got a changed echo of its own action; want the host's bytes")
						}
					}
					c.wantRead("who said it", "own")
					w.resumes("other", board).wantRead("another", "own")
				})
			})
		}
	}
}

// TestClientsDoNotOpenPortsByState dispatches an action with an address, which the host then copies
// into the canvas's state. No client may read content at this address.
func TestClientsDoNotOpenPortsByState(t *testing.T) {
	own, secret := site(t, "own"), site(t, "secret")
	inCanvasWorld(t, stateAt(own), func(w *world, host *canvasHost) {
		dispatch := func(c *remote, action string) {
			c.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"` + board + `","clientSeq":1,"action":` + action + `}}`)
		}
		c := w.initializes("mallory")
		dispatch(c, fmt.Sprintf(`{"type":"canvas/later","canvas":[{"u\u0072l":%q}]}`, secret+"/x"))
		host.state = stateAt(secret)
		if got := c.subscribes(board); !strings.Contains(got, host.state) {
			t.Errorf("the client got the state %s; want the host's, unchanged", got)
		}
		c.wantRead("a client's address in the state", "-32008 the canvas has no content")
		w.resumes("other", board).wantRead("another", "-32008 the canvas has no content")

		// An address in the host's own message may be read, although a client has sent it, too.
		w.hostSide().toUs <- notify(update(own, ""))
		c = w.initializes("mallory")
		dispatch(c, fmt.Sprintf(`{"type":"canvas/updated","url":%q}`, own))
		host.state = stateAt(own)
		if got := c.subscribes(board); !strings.Contains(got, `"url":"ahp-canvas-content:/i/"`) {
			t.Errorf("the client got the state %s; want its URL replaced by ahp-canvas-content:/i/", got)
		}
		c.wantRead("the host's own address", "own")
	})
}

// TestClientsDoNotCloseCanvases has the host repeat a client's action with an empty list of
// canvases. The canvas must stay readable, because the host has not closed it.
func TestClientsDoNotCloseCanvases(t *testing.T) {
	own := site(t, "own")
	inCanvasWorld(t, stateAt(own), func(w *world, _ *canvasHost) {
		c := w.initializes("c")
		c.subscribes(sharing)
		c.subscribes(board)
		for _, more := range []string{`,"rejectionReason":"no"`, `,"origin":{"clientId":"mallory"}`} {
			w.hostSide().toUs <- notify(`{"channel":"` + sharing + `","action":{"type":"session/openCanvasesChanged","openCanvases":[]}` + more + `}`)
			c.wantRead("after what a client says", "own")
		}
	})
}

// TestClosedCanvasIsNotReadable closes a canvas. A client that follows its session and a client
// that follows only the canvas must both get an error when they read.
func TestClosedCanvasIsNotReadable(t *testing.T) {
	own := site(t, "own")
	inCanvasWorld(t, stateAt(own), func(w *world, host *canvasHost) {
		follows, only := w.initializes("follows"), w.initializes("only")
		follows.subscribes(sharing)
		follows.subscribes(board)
		followed := w.host.all()[1]
		only.asks("subscribe", `{"delivery":{"maxLatencyMs":50},"channel":"`+board+`"}`)
		time.Sleep(time.Minute)
		follows.wantRead("open", "own")
		only.wantRead("open", "own")
		host.state = ""
		followed.toUs <- notify(`{"channel":"` + sharing + `","action":{"type":"session/openCanvasesChanged","openCanvases":[]}}`)
		follows.wantRead("closed", "-32008 the canvas is closed")
		time.Sleep(2*time.Second + 1)
		only.wantRead("closed, which others are told", "-32008 the canvas is closed")

		asked := slices.DeleteFunc(w.hostSide().messages(), func(m string) bool { return !strings.Contains(m, `"subscribe"`) })
		if n := len(asked); n != 3 {
			t.Errorf("the host got %d subscribes; want the client's, and one before each read: %q", n, asked)
		}
		for _, m := range asked {
			if !strings.Contains(m, `"params":{"delivery":{"maxLatencyMs":50},"channel":"`+board+`"}`) {
				t.Errorf("the host-agent subscribes with %s; want the parameters of the client's subscription", m)
			}
		}
	})
}

// TestResumedClientReadsCanvasAtANewHostAgent resumes a client at a host-agent that has never seen
// the canvas's state. The client must get the content that the host names now.
func TestResumedClientReadsCanvasAtANewHostAgent(t *testing.T) {
	own, later := site(t, "own"), site(t, "later")
	inCanvasWorld(t, stateAt(own), func(w *world, host *canvasHost) {
		c := w.resumes("c", sharing, board)
		if got := c.hear(); got != "" {
			t.Errorf("the client got %s before the host's answer; want nothing", got)
		}
		// In the host's later messages, the host-agent replaces the canvas's address.
		w.hostSide().toUs <- notify(update(later, ""))
		if got := c.hear(); !strings.Contains(got, `"url":"ahp-canvas-content:/i/"`) {
			t.Errorf("the client got %s; want the canvas's address replaced", got)
		}
		c.wantRead("open", "later")
		time.Sleep(time.Minute)
		c.wantRead("as the host says in the end", "own")

		// At each reading, the host's answer decides whether this client may read.
		host.lost = `"` + board + `"`
		w.resumes("d", board).wantRead("not the client's", "-32009 the client is not subscribed")
		host.state, host.lost = "", ""
		w.resumes("e", board).wantRead("closed meanwhile", "-32008 the host no longer shows")
		host.state = `{"instanceId":"j","provider":{"kind":"server"},"url":"` + own + `"}`
		w.resumes("f", board).wantRead("another instance", "-32602 the address names a different instance")
		host.state = strings.Replace(stateAt(own), "server", "client", 1)
		w.resumes("g", board).wantRead("a client's", "-32008 the canvas has no content")
	})
}

// TestHostIsNotAskedInVain fails if the host-agent sends the host a request that is no use for the
// client, or that would change the client's subscriptions.
func TestHostIsNotAskedInVain(t *testing.T) {
	own := site(t, "own")
	inCanvasWorld(t, stateAt(own), func(w *world, host *canvasHost) {
		for name, test := range map[string]struct {
			do   func(c *remote)
			want string
		}{
			"who left": {func(c *remote) {
				c.subscribes(board)
				c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + board + `"}}`)
			}, "-32009"},
			"who left before the answer": {func(c *remote) {
				w.host.set(func() { w.host.answers = nil })
				c.send(`{"jsonrpc":"2.0","id":5,"method":"subscribe","params":{"channel":"` + board + `"}}`)
				c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + board + `"}}`)
				w.host.set(func() { w.host.answers = host.answers })
				w.hostSide().toUs <- `{"id":5,"result":{"snapshot":{"resource":"` + board + `","state":` + stateAt(own) + `}}}`
			}, "-32009"},
			"who leaves while it reads": {func(c *remote) {
				c.subscribes(board)
				time.Sleep(time.Minute + time.Millisecond) // between the host's pings
				busy := make(chan struct{})
				w.host.set(func() { w.host.answers = nil })
				c.send(`{"jsonrpc":"2.0","id":6,"method":"canvasReadResource","params":{"channel":"` + board + `","uri":"ahp-canvas-content:/i/"}}`)
				w.host.set(func() { w.host.answers, w.host.gate = host.answers, busy })
				c.send(`{"jsonrpc":"2.0","method":"x"}`)
				c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + board + `"}}`)
				w.hostSide().toUs <- `{"id":6,"error":{"code":-32601,"message":"Method not found"}}`
				synctest.Wait()
				w.host.set(func() { w.host.gate = nil })
				close(busy)
				if got := c.hear(); !strings.Contains(got, `"id":6,"error":{"code":-32009`) {
					t.Errorf("the client got %s; want error -32009 to request 6", got)
				}
			}, "-32009"},
		} {
			c := w.initializes("c")
			test.do(c)
			time.Sleep(time.Minute)
			c.wantRead(name, test.want)
			said := strings.Join(w.hostSide().messages(), "\n")
			if n := strings.Count(said, `"subscribe"`); n != 1 {
				t.Errorf("%s: the host got %d subscribes; want 1:\n%s", name, n, said)
			}
		}

		// A client whose host does not answer gets an error after 10 s.
		c := w.initializes("c")
		c.subscribes(board)
		time.Sleep(time.Minute + time.Millisecond)
		w.host.set(func() {
			w.host.answers = func(env ahp.Envelope) string {
				if string(env.Method) == "subscribe" {
					return ""
				}
				return host.answers(env)
			}
		})
		c.send(`{"jsonrpc":"2.0","id":6,"method":"canvasReadResource","params":{"channel":"` + board + `","uri":"ahp-canvas-content:/i/"}}`)
		time.Sleep(10 * time.Second)
		if got := c.hear(); !strings.Contains(got, `"id":6,"error":{"code":-32008,"message":"no answer from the host about the canvas`) {
			t.Errorf("the client got %s; want error -32008 to request 6", got)
		}

		// For a client that may not use the canvas's session, the host-agent sends no request.
		c = w.openAs(w.relay, routing.Open{ID: "l", Subject: "eve", Access: "write", Channels: []string{"ahp-session:/other"}})
		c.asks("reconnect", `{"channel":"ahp-root://","clientId":"l","lastSeenServerSeq":1,"subscriptions":["`+board+`"]}`)
		c.asks("canvasReadResource", `{"channel":"`+board+`","uri":"ahp-canvas-content:/i/"}`)
		if said := strings.Join(w.hostSide().messages(), "\n"); strings.Contains(said, "subscribe\"") {
			t.Errorf("the host got a subscribe for a canvas that was described just now; want none:\n%s", said)
		}
	})
}
