package connect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"ahprelay/internal/atomicfile"
	"ahprelay/internal/sealed"
)

// Follow stores a link to a session of a sealed host as this machine's pairing with that
// host. If the machine is paired already, other than by a link, it keeps that pairing.
func (r *Relay) Follow(home *Home, l *sealed.ShareLink) (*Pairing, error) {
	p := &Pairing{Relay: r.URL, Host: l.Host, Key: l.Key, Device: l.Device, Link: true, Viewer: sealed.NewViewer()}
	known, err := home.Pairing(r.URL, l.Host)
	switch {
	case err != nil:
		return nil, err
	case known != nil && known.Key != l.Key:
		return nil, fmt.Errorf("this machine knows a different key of %s than this link: ask the link's sender, and compare the host's words with those that ahp-connect devices prints", l.Host)
	case known != nil && !known.Link:
		return known, nil
	}
	return p, home.SavePairing(p)
}

// maxJoin bounds a relay's answer to a link, in bytes.
const maxJoin = 64 << 10

// Join exchanges a link's secret for a token at the link's relay, and writes the token to
// a file.
func Join(ctx context.Context, l *sealed.ShareLink, file string) error {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"link": l.Join})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(l.Relay, "/")+"/auth/share", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return unwrapURL(l.Relay, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxJoin))
	if err != nil {
		return err
	}
	var answer struct{ Token, Error string }
	if json.Unmarshal(data, &answer) != nil || answer.Token == "" {
		return fmt.Errorf("the relay does not take this link: %s", cmp.Or(answer.Error, response.Status))
	}
	return atomicfile.Replace(file, []byte(answer.Token+"\n"), 0o600)
}
