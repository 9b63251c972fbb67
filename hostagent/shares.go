package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"ahprelay/auth"
)

// Sharing says how the owner of a host's machine has a relay share its sessions. What a link allows is
// judged by the host-agent too: none widens what its owner has set.
type Sharing struct {
	Relays      []string               // required; base URLs of the relays of one cluster
	Token       func() (string, error) // required; as of Config
	Credentials *CredentialFile        // as of Config
	Plain       bool                   // as of Config
	HTTP        *http.Client           // default: as of Config
}

// A ShareAsk is what a link is to be.
type ShareAsk struct {
	Session string        // URI
	Level   auth.Access   // "": look
	TTL     time.Duration // 0: an hour
	People  int           // connections at a time; 0: 64
	Files   bool          // in the session's working directories, too
}

// A Link is one that was made.
type Link struct {
	ID      string
	Link    string
	Expires time.Time
}

// A Shared is a link to the host that is good, and who is there by it, at the relay that was asked.
type Shared struct {
	ID, By, Session, Level string
	People                 int
	Expires                time.Time
	Watching               []struct {
		Address string
		Since   time.Time
	}
}

// Share has a link made.
func (s *Sharing) Share(ctx context.Context, ask ShareAsk) (link Link, err error) {
	return link, s.do(ctx, map[string]any{
		"do": "make", "session": ask.Session, "level": ask.Level, "seconds": int(ask.TTL.Seconds()), "people": ask.People, "files": ask.Files,
	}, &link)
}

// List returns the links to the host that are good, whoever has made them.
func (s *Sharing) List(ctx context.Context) ([]Shared, error) {
	var answer struct{ Shares []Shared }
	return answer.Shares, s.do(ctx, map[string]any{"do": "list"}, &answer)
}

// TakeBack ends a link to the host, all for "", and says how many.
func (s *Sharing) TakeBack(ctx context.Context, id string) (int, error) {
	var answer struct{ Ended int }
	return answer.Ended, s.do(ctx, map[string]any{"do": "end", "id": id, "all": id == ""}, &answer)
}

// do asks the first relay that can be reached.
func (s *Sharing) do(ctx context.Context, ask map[string]any, answer any) error {
	if err := checkRelays(s.Relays); err != nil {
		return err
	}
	if err := checkPlain(s.Relays, nil); err != nil && !s.Plain {
		return err
	}
	client := s.HTTP
	if client == nil {
		client = newHTTPClient()
	}
	a, err := newAccess(s.Relays, nil, s.Token, client)
	if err != nil {
		return err
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	var failures []error
	for _, relay := range a.relays.inOrder() {
		err := s.askRelay(ctx, a, relay, text, answer)
		if err == nil || !temporary(err) {
			return err
		}
		failures = append(failures, err)
	}
	return joined(failures)
}

func (s *Sharing) askRelay(ctx context.Context, a *access, relay string, ask []byte, answer any) error {
	challenge, err := a.challenge(ctx, relay)
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
	return a.post(ctx, relay, "/agent/shares", body, answer)
}
