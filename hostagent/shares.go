package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"ahprelay/auth"
)

// Sharing lets the owner of a host's machine share the host's sessions by links
// through a relay. The limits that the owner has set at the host-agent apply to links
// too.
type Sharing struct {
	Relays      []string               // required; base URLs of one cluster's relays
	Token       func() (string, error) // required; returns the enrolment token or the credential
	Credentials *CredentialFile        // holds the credential's key; nil with an enrolment token
	Plain       bool                   // permits http:// beyond this machine, as in Config
	HTTP        *http.Client           // sends requests to the relays; default: as in Config
}

// A ShareAsk describes a link to make.
type ShareAsk struct {
	Session string        // URI of the session
	Level   auth.Access   // the viewers' level; "" for look
	TTL     time.Duration // how long the link is valid; 0 for an hour
	People  int           // most connections at the same time; 0 for 64
	Files   bool          // viewers may also read the session's working directories
}

// A Link is a link that Share has made: with it, people open the console at one session.
type Link struct {
	ID      string
	Link    string // the URL
	Expires time.Time
}

// A Shared is a valid link to the host, with its viewers at the relay.
type Shared struct {
	ID, By, Session, Level string
	People                 int
	Expires                time.Time
	Watching               []struct {
		Address string
		Since   time.Time
	}
}

// Share makes a link.
func (s *Sharing) Share(ctx context.Context, ask ShareAsk) (link Link, err error) {
	err = s.do(ctx, map[string]any{
		"do": "make", "session": ask.Session, "level": ask.Level, "seconds": int(ask.TTL.Seconds()), "people": ask.People, "files": ask.Files,
	}, &link)
	return link, err
}

// List returns all valid links to the host.
func (s *Sharing) List(ctx context.Context) ([]Shared, error) {
	var answer struct{ Shares []Shared }
	err := s.do(ctx, map[string]any{"do": "list"}, &answer)
	return answer.Shares, err
}

// TakeBack ends a link to the host, or all links if id is empty, and returns their
// number.
func (s *Sharing) TakeBack(ctx context.Context, id string) (int, error) {
	var answer struct{ Ended int }
	err := s.do(ctx, map[string]any{"do": "end", "id": id, "all": id == ""}, &answer)
	if err != nil && id != "" {
		err = fmt.Errorf("link %s: %w", id, err)
	}
	return answer.Ended, err
}

// Open redeems a new link like its first viewer. It returns the relay that issued the
// viewer's token, the token and the host.
func (s *Sharing) Open(ctx context.Context, link Link) (relay, token, host string, err error) {
	_, secret, _ := strings.Cut(link.Link, "#")
	var answer struct{ Token, Host string }
	err = s.first(func(a *access, at string) error {
		relay = at
		return a.post(ctx, at, "/auth/share", nil, map[string]string{"link": secret}, &answer)
	})
	return relay, answer.Token, answer.Host, err
}

// do sends a request to the first reachable relay.
func (s *Sharing) do(ctx context.Context, ask map[string]any, answer any) error {
	text, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	return s.first(func(a *access, relay string) error { return s.askRelay(ctx, a, relay, text, answer) })
}

// first calls ask with one relay after the other until one answers or refuses.
func (s *Sharing) first(ask func(a *access, relay string) error) error {
	if err := checkRelays(s.Relays, nil, s.Plain); err != nil {
		return err
	}
	a, err := newAccess(s.Relays, nil, s.Token, s.HTTP)
	if err != nil {
		return err
	}
	var failures []error
	for _, relay := range a.relays.inOrder() {
		err := ask(a, relay)
		if err == nil || !temporary(err) {
			return err
		}
		failures = append(failures, err)
	}
	return joined(failures)
}

func (s *Sharing) askRelay(ctx context.Context, a *access, relay string, ask []byte, answer any) error {
	challenge, err := a.challenge(ctx, relay, nil)
	if err != nil {
		return err
	}
	body := map[string]any{"challenge": challenge, "ask": string(ask)}
	if s.Credentials != nil {
		key, err := s.Credentials.Key()
		if err != nil {
			return err
		}
		sum := sha256.Sum256(ask)
		if body["keySignature"], err = key.Prove(auth.ToShare, challenge, a.tenant, a.host, base64.RawURLEncoding.EncodeToString(sum[:])); err != nil {
			return err
		}
	}
	err = a.post(ctx, relay, "/agent/shares", nil, body, answer)
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Status == http.StatusNotFound {
		return &RefusedError{Text: refused.Text} // the relay is there, since it gave a challenge: the link is not
	}
	return err
}
