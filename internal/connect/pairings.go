package connect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/ahp"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/sealed"
)

// A Pairing is this machine's pairing with a sealed host. While it exists, the host is
// never opened unencrypted, nor with a different key.
type Pairing struct {
	Relay  string // base URL
	Host   string
	Key    sealed.Key
	Device *sealed.Device
	Grants []string
	Link   bool   // the device belongs to a link to one session
	Viewer string // secret of the link's viewer, see sealed.NewViewer
}

type pairingFile struct {
	Relay  string   `json:"relay"`
	Host   string   `json:"host"`
	Key    []byte   `json:"key"`
	Device []byte   `json:"device,omitempty"` // absent: stored in the key store
	Grants []string `json:"grants,omitempty"`
	Link   bool     `json:"link,omitempty"`
	Viewer string   `json:"viewer,omitempty"`

	Unpaired bool `json:"unpaired,omitempty"` // the host is sealed, but this machine has no key for it any more
}

func (h *Home) pairings() string { return filepath.Join(h.Dir, "sealed") }

func (h *Home) pairingPath(relay, host string) string {
	return filepath.Join(h.pairings(), RelayName(relay)+"."+host+".json")
}

// pairingKey is the name of a pairing's secret in the key store.
func pairingKey(relay, host string) string { return "sealed " + RelayName(relay) + " " + host }

// SavePairing stores a pairing durably.
func (h *Home) SavePairing(p *Pairing) error {
	if err := os.MkdirAll(h.pairings(), 0o700); err != nil {
		return err
	}
	secret, err := p.Device.Private()
	if err != nil {
		return err
	}
	file := pairingFile{Relay: p.Relay, Host: p.Host, Key: p.Key[:], Device: secret, Grants: p.Grants, Link: p.Link, Viewer: p.Viewer}
	if h.Keys != nil && h.Keys.Set(pairingKey(p.Relay, p.Host), string(secret)) == nil {
		file.Device = nil
	}
	return h.writePairing(&file)
}

func (h *Home) writePairing(file *pairingFile) error {
	return atomicfile.ReplaceJSON(h.pairingPath(file.Relay, file.Host), file, "")
}

// Pairing returns the pairing with a host, or nil if there is none. If it returns an
// error, the host must not be opened at all.
func (h *Home) Pairing(relay, host string) (*Pairing, error) {
	if ahp.CheckName("host", host) != nil {
		return nil, nil // no host has such a name
	}
	data, err := os.ReadFile(h.pairingPath(relay, host))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	damaged := func(err error) error {
		return fmt.Errorf("the pairing with %s cannot be read (%w): run ahp-connect unpair %s, and pair again", host, err, host)
	}
	if err != nil {
		return nil, damaged(err)
	}
	var file pairingFile
	err = json.Unmarshal(data, &file)
	switch {
	case err == nil && file.Unpaired:
		return nil, fmt.Errorf("%s is sealed, and this machine is not paired with it any more: %w", host, errUnpaired)
	case err != nil || len(file.Key) != sealed.KeySize:
		return nil, damaged(errors.New("damaged file"))
	}
	secret := file.Device
	if secret == nil {
		if h.Keys == nil {
			return nil, fmt.Errorf("the key for %s is in the key store, which --key-file excludes", host)
		}
		kept, err := h.Keys.Get(pairingKey(relay, host))
		if err != nil {
			return nil, fmt.Errorf("the key store does not give the key for %s (%w): unlock it", host, err)
		}
		secret = []byte(kept)
	}
	device, err := sealed.ReadDevice(secret)
	if err != nil {
		return nil, damaged(err)
	}
	return &Pairing{Relay: file.Relay, Host: file.Host, Key: sealed.Key(file.Key), Device: device, Grants: file.Grants, Link: file.Link, Viewer: file.Viewer}, nil
}

// errUnpaired reports that the host is sealed and this machine is not paired with it.
var errUnpaired = errors.New("run ahp-connect pair")

// Unpair forgets the keys of a pairing. This machine still refuses to open the host unsealed,
// because a relay may have caused the fault for which a person unpairs. With forget, it opens
// the host unsealed too.
func (h *Home) Unpair(relay, host string, forget bool) error {
	path := h.pairingPath(relay, host)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("this machine is not paired with %s at %s", host, RelayName(relay))
	}
	if h.Keys != nil {
		_ = h.Keys.Delete(pairingKey(relay, host)) // fails if the key is in the file
	}
	if forget {
		return os.Remove(path)
	}
	return h.writePairing(&pairingFile{Relay: relay, Host: host, Unpaired: true})
}

// Seal makes the relays open paired hosts sealed, with the pairings in a home.
func (r *Relays) Seal(h *Home) *Relays {
	for _, one := range r.list {
		one.pairing = func(host string) (*Pairing, error) { return h.Pairing(one.URL, host) }
	}
	return r
}

// Title returns the words of both keys, for people to compare.
func (p *Pairing) Title() string {
	return fmt.Sprintf("this device: %s; host %s: %s", p.Device.Identity().Fingerprint().Words(), p.Host, sealed.HostFingerprint(p.Key).Words())
}

// ReadLink parses text as a pairing link. It returns false if text is none.
func ReadLink(text string) (link sealed.PairLink, ok bool, err error) {
	if !strings.Contains(text, "#") {
		return link, false, nil
	}
	link, err = sealed.ParsePairLink(text)
	return link, true, err
}

// ask returns the configuration for a sealed connection.
func (p *Pairing) ask() sealAsk {
	return sealAsk{relay: p.Relay, host: p.Host, key: &p.Key, device: p.Device, grants: p.Grants, viewer: p.Viewer}
}
