package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/internal/atomicfile"
	"ahprelay/routing"
)

// Private sessions. A person with the level own can hide a session from all other
// subjects, even from those whose tokens permit it.
//
//	→ {"id":1,"method":"relay/private","params":{"channel":"s:/1","private":true}}
//	← {"id":1,"result":{"sessions":["s:/1"]}}   the subject's private sessions
//
// Without the member private, the request only lists. The host-agent answers; the host
// never receives it. When a session becomes private, the host-agent ends all connections of
// other subjects or at the level look, so they reconnect under the new rules. Canvases by URL of
// such clients end too, also while the clients are away. It refuses clients
// whose token names private sessions only, and relays do not report that these have joined. Relays keep
// no last state of private sessions, and notify only their owner. At the level look, viewers may
// share a connection, so they never see private sessions. People who operate the host can
// still read a private session's files and use its terminals.

// privateMethod is the request that the host-agent answers.
const privateMethod = "relay/private"

// Bounds of private sessions.
const (
	maxPrivate      = 1000
	maxPrivateChats = 256 // most channels that are kept for a session when it becomes private
)

type privateSession struct {
	Owner    string   `json:"owner"`
	Channels []string `json:"channels,omitempty"` // channels that belong to the session
}

// privateSessions holds the private sessions by URI, in memory and in a file.
type privateSessions struct {
	path  string // the file's path; "" keeps the sessions in memory only
	fence atomicfile.Fence

	mu sync.Mutex
	of map[string]privateSession
}

// open reads the file. An unreadable file is an error, because its sessions would become
// visible.
func (p *privateSessions) open(dir, tenant, host string) error {
	if dir == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.path, p.of = filepath.Join(dir, "private."+tenant+"."+host+".json"), nil
	_, err := atomicfile.ReadJSON(p.path, &p.of)
	if _, unread := errors.AsType[*fs.PathError](err); unread {
		return fmt.Errorf("private sessions: %w", err)
	}
	if err != nil {
		return fmt.Errorf("private sessions: %s: %w; remove the file to show all sessions", p.path, err)
	}
	return nil
}

// errPrivateFull reports too many private sessions, and errPrivateForeign a session which
// belongs to another person.
var (
	errPrivateFull    = fmt.Errorf("too many private sessions (limit: %d)", maxPrivate)
	errPrivateForeign = errors.New("this session is private to a different person")
)

// set makes a session private or visible, and reports whether other subjects can see less
// than before.
func (p *privateSessions) set(owner, session string, private bool, channels []string) (hides bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had, was := p.of[session]
	switch {
	case was && had.Owner != owner:
		return false, errPrivateForeign
	case was == private:
		return false, nil
	case private && len(p.of) >= maxPrivate:
		return false, errPrivateFull
	}
	next := map[string]privateSession{}
	maps.Copy(next, p.of)
	if delete(next, session); private {
		next[session] = privateSession{owner, channels[:min(len(channels), maxPrivateChats)]}
	}
	if p.path != "" {
		if err := p.fence.ReplaceJSON(p.path, next, ""); err != nil {
			return false, fmt.Errorf("private sessions: %w", err)
		}
	}
	p.of = next
	return private, nil
}

func (p *privateSessions) owned(subject string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []string{}
	for uri, one := range p.of {
		if one.Owner == subject {
			list = append(list, uri)
		}
	}
	slices.Sort(list)
	return list
}

// owner returns the owner of a private session, or "".
func (p *privateSessions) owner(session string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[session].Owner
}

// hidden returns the channels that a client may not see.
func (p *privateSessions) hidden(open routing.Open) (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uri, one := range p.of {
		if one.Owner != open.Subject || !auth.Access(open.Access).Includes(auth.AccessTalk) {
			list = append(append(list, uri), one.Channels...)
		}
	}
	return list
}

// privateReason is the close reason for a client that may use private sessions only.
const privateReason = "the session is private"

// namesHidden reports whether a client may use only channels that are hidden from it, or that belong
// to such channels. The visitor of a link to a private session is such a client.
func namesHidden(known *view.Host, policy gate.Policy) bool {
	all := gate.Policy{Hidden: policy.Hidden}
	return slices.ContainsFunc(policy.Channels, func(list []string) bool {
		return !slices.ContainsFunc(list, func(uri string) bool {
			return uri == ahp.RootChannel || strings.Contains(uri, "*") || all.Reaches(uri, known)
		})
	})
}

// A privateGate answers a client's requests about its private sessions.
type privateGate struct {
	view *view.Conn
	conn *hostConn
}

func (g privateGate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	if string(env.Method) != privateMethod {
		return gate.Decision{}
	}
	if env.Kind != ahp.Request {
		return gate.Decision{Verdict: gate.Answer}
	}
	refuse := func(code int, why string) gate.Decision {
		return gate.Decision{Verdict: gate.Answer, Message: ahp.AppendError(nil, env.ID, code, why, nil)}
	}
	c, session := g.conn, string(env.Channel)
	if !c.policy.Access.Includes(auth.AccessAdmin) {
		return refuse(ahp.CodePermissionDenied, "only an owner of the host has private sessions")
	}
	m := [...]ahp.Member{{Name: "private"}}
	if ahp.Spelt(env.Params, m[:]) != nil {
		return refuse(ahp.CodeInvalidParams, "params: want {channel, private}")
	}
	switch on := string(m[0].Raw); on {
	case "": // a list
	case "true", "false":
		if !g.view.Subscribed(session) || session == ahp.RootChannel || gate.Key(session) != session || !c.policy.Takes(session, "subscribe") {
			return refuse(ahp.CodePermissionDenied, "subscribe to this session first")
		}
		if err := g.set(session, on == "true"); err != nil {
			return refuse(ahp.CodePermissionDenied, err.Error())
		}
	default:
		return refuse(ahp.CodeInvalidParams, "private: want true or false")
	}
	result, _ := json.Marshal(map[string][]string{"sessions": c.agent.private.owned(c.open.Subject)}) // strings always encode
	return gate.Decision{Verdict: gate.Serve, Message: ahp.AppendResult(nil, env.ID, result)}
}

func (privateGate) FromHost([]byte, *ahp.Envelope, *view.Reading) gate.Decision {
	return gate.Decision{}
}

// set makes a session private to the client's subject, or visible again.
func (g privateGate) set(session string, private bool) error {
	by, a := g.conn, g.conn.agent
	hides, err := a.private.set(by.open.Subject, session, private, by.gates.View.Host().Belonging(session))
	if err != nil {
		return err
	}
	by.audit("private", "session", shorten(session), "private", private)
	if a.ledger != nil {
		a.ledger.Judge()
	}
	if !private && a.last.keeper != nil && a.watch != nil {
		a.watch.Relist() // the keeper has dropped the session's summary
	}
	if !hides {
		return nil
	}
	if a.last.keeper != nil {
		a.last.keeper.Summary(session, nil, false)
	}
	a.live.previews.end(func(one *openPreview) bool { return one.Channel == session && one.Subject != by.open.Subject })
	for _, c := range a.clients.every() {
		if c != by && (c.open.Subject != by.open.Subject || !auth.Access(c.open.Access).Includes(auth.AccessTalk)) {
			c.kicked.Store(true) // also ends the client's canvases
			c.conn.Abort(ahp.CloseResync, "the host's sessions have changed")
			c.cancel()
		}
	}
	a.live.hide(by.open.Subject)
	return nil
}
