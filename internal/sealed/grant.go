package sealed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"ahprelay/auth"
)

// Bounds of grants.
const (
	maxChain    = 4
	maxGrant    = 4 << 10             // bytes of a grant's text
	MaxLife     = 30 * 24 * time.Hour // of a grant, and of a paired device which does not connect
	clockSkew   = 10 * time.Minute    // tolerated difference between clocks of devices and hosts
	maxChannels = 32
)

// A Grant is a device's statement that a host may admit a further device.
type Grant struct {
	Host     Fingerprint // of the host's key
	By       Fingerprint // of the issuing device's keys
	Device   Identity    // the admitted device
	Subject  string      // the person or service which owns the device
	Level    auth.Access
	Channels []string // patterns, as in tokens; empty: all channels
	From     time.Time
	End      time.Time
	Serial   string
}

type grantBody struct {
	Host     string      `json:"host"`
	By       string      `json:"by"`
	Key      string      `json:"key"`
	Verifier string      `json:"verifier"`
	Subject  string      `json:"subject"`
	Level    auth.Access `json:"level"`
	Channels []string    `json:"channels,omitempty"`
	From     int64       `json:"from"`
	End      int64       `json:"end"`
	Serial   string      `json:"serial"`
}

func signedGrant(body []byte) []byte { return append([]byte(label+"grant\x00"), body...) }

// SignGrant returns a grant's text, signed by this device. It sets Host and By.
func (d *Device) SignGrant(host Key, g Grant) (string, error) {
	body, err := json.Marshal(grantBody{
		Host: HostFingerprint(host).String(), By: d.Identity().Fingerprint().String(),
		Key:      base64.RawURLEncoding.EncodeToString(g.Device.Key[:]),
		Verifier: base64.RawURLEncoding.EncodeToString(g.Device.Verifier[:]),
		Subject:  g.Subject, Level: g.Level, Channels: g.Channels, From: g.From.Unix(), End: g.End.Unix(), Serial: g.Serial,
	})
	if err != nil {
		return "", err
	}
	signature, err := d.sign(signedGrant(body))
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(signature)
	_, err = ReadGrant(text)
	return text, err
}

// A ClaimedGrant is a grant whose signature was not checked.
type ClaimedGrant struct {
	Grant
	body, signature []byte
}

// ReadGrant parses a grant's text. It does not check the signature.
func ReadGrant(text string) (*ClaimedGrant, error) {
	if len(text) > maxGrant {
		return nil, fmt.Errorf("grant of %d bytes; want at most %d", len(text), maxGrant)
	}
	first, second, two := strings.Cut(text, ".")
	body, err1 := base64.RawURLEncoding.Strict().DecodeString(first)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(second)
	if !two || err1 != nil || err2 != nil || len(signature) != signatureSize {
		return nil, errors.New("grant: want a body and a signature in base64url")
	}
	var b grantBody
	if err := decode(body, &b); err != nil {
		return nil, fmt.Errorf("grant: %w", err)
	}
	g := &ClaimedGrant{body: body, signature: signature, Grant: Grant{
		Subject: b.Subject, Level: b.Level, Channels: b.Channels,
		From: time.Unix(b.From, 0), End: time.Unix(b.End, 0), Serial: b.Serial,
	}}
	host, err1 := ParseFingerprint(b.Host)
	by, err2 := ParseFingerprint(b.By)
	key, err3 := base64.RawURLEncoding.Strict().DecodeString(b.Key)
	verifier, err4 := base64.RawURLEncoding.Strict().DecodeString(b.Verifier)
	if err := errors.Join(err1, err2, err3, err4); err != nil || len(key) != KeySize || len(verifier) != VerifierSize {
		return nil, errors.New("grant with a bad key or fingerprint")
	}
	g.Host, g.By, g.Device = host, by, Identity{Key(key), Verifier(verifier)}
	return g, errors.Join(g.Device.Verifier.check(), g.check())
}

// check rejects contents which no correct device signs.
func (g *Grant) check() error {
	if err := CheckSubject(g.Subject, g.Level); err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	switch {
	case len(g.Channels) > maxChannels || !slices.IsSortedFunc(g.Channels, strings.Compare):
		return errors.New("grant with too many channels, or channels out of order")
	case !isSerial(g.Serial): // a removal could not name it
		return errors.New("grant with a bad serial")
	case max(g.From.Unix(), -g.From.Unix(), g.End.Unix(), -g.End.Unix()) > maxWhole:
		return errors.New("grant with a time that not every reader can read")
	case !g.End.After(g.From) || g.End.Sub(g.From) > MaxLife:
		return fmt.Errorf("grant for more than %v, or for no time", MaxLife)
	}
	return nil
}

// isSerial reports whether a text is 16 bytes in base64url.
func isSerial(text string) bool {
	_, err := ParseFingerprint(text)
	return err == nil
}

// printable reports whether a text has only visible characters and spaces.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// maxWhole bounds integers in JSON, because JavaScript represents larger ones inexactly.
const maxWhole = 1<<53 - 1

// surrogate finds escaped surrogates. JSON parsers read lone surrogates in different ways.
var surrogate = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u[dD][89a-fA-F]`)

// decode decodes a JSON object into a struct. It is stricter than encoding/json: names must
// match exactly and occur once, null and invalid UTF-8 are errors, and a member without
// omitempty is required. Each rule has its branch.
func decode(data []byte, into any) error {
	if !utf8.Valid(data) || surrogate.Match(data) {
		return errors.New("not UTF-8, or an escaped surrogate")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	known := members(into)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return errors.New("not a JSON object")
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return errors.New("not a JSON object")
		}
		text, _ := name.(string)
		if _, ok := known[text]; !ok {
			return errors.New("an unknown member, or two equal members")
		}
		delete(known, text)
		if bytes.Contains(value, []byte("null")) && hasNull(value) {
			return errors.New("a member without a value")
		}
	}
	for _, required := range known {
		if required {
			return errors.New("a member is missing")
		}
	}
	if _, err := d.Token(); err != nil {
		return errors.New("not a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes behind the JSON object")
	}
	if json.Unmarshal(data, into) != nil {
		return errors.New("not the expected JSON object")
	}
	return nil
}

// members returns the JSON names of a struct's members, and whether each is required.
func members(of any) map[string]bool {
	t := reflect.TypeOf(of).Elem()
	names := make(map[string]bool, t.NumField())
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[name] = options != "omitempty"
	}
	return names
}

func hasNull(value json.RawMessage) bool {
	var list []json.RawMessage
	return string(value) == "null" || json.Unmarshal(value, &list) == nil && slices.ContainsFunc(list, func(v json.RawMessage) bool { return string(v) == "null" })
}

// A Holder is a device paired with the host, and its authority.
type Holder struct {
	Identity Identity
	Subject  string
	Level    auth.Access
	Channels []string
	End      time.Time
}

// Rests reports whether the authority depends on a device, given by its fingerprint, or on a
// grant, given by its serial.
func (a *Authority) Rests(on string) bool {
	return slices.Contains(a.Serials, on) || slices.ContainsFunc(a.Chain, func(f Fingerprint) bool { return f.String() == on })
}

// All returns every device and serial on which the authority depends.
func (a *Authority) All() []string {
	all := slices.Clone(a.Serials)
	for _, f := range a.Chain {
		all = append(all, f.String())
	}
	return all
}

// An Authority is the authority of an admitted device.
type Authority struct {
	Subject string
	Level   auth.Access
	Limits  [][]string // channels of the holder and of each grant; a channel must match all lists
	End     time.Time
	Chain   []Fingerprint // the devices from the holder to this device
	Serials []string      // serials of the grants
}

// A Registry looks up devices and grants at a host.
type Registry interface {
	// Holder returns a device paired with the host.
	Holder(Fingerprint) (Holder, bool)
	// Removed reports whether a device, or a grant given by its serial, was removed.
	Removed(fingerprintOrSerial string) bool
}

// Errors of Admit.
var (
	// ErrUnknownDevice reports that the device, or the issuer of its first grant, is not paired.
	ErrUnknownDevice = errors.New("this host does not know this device: pair it with ahp-connect pair")
	// ErrRemoved reports that the device, or a device or grant it needs, was removed.
	ErrRemoved = errors.New("this device, or one that has admitted it, has been removed from the host")
	// ErrEnded reports that the device's authority has expired.
	ErrEnded = errors.New("this device's time at the host is over: pair it again")
)

// Admit returns the authority which a device has at a host, through its grants.
func Admit(known Registry, host Key, device Identity, grants []string, now time.Time) (*Authority, error) {
	if len(grants) > maxChain {
		return nil, fmt.Errorf("chain of %d grants; want at most %d", len(grants), maxChain)
	}
	chain := make([]*ClaimedGrant, 0, len(grants))
	for _, text := range grants {
		g, err := ReadGrant(text)
		if err != nil {
			return nil, err
		}
		chain = append(chain, g)
	}
	first := device.Fingerprint()
	if len(chain) > 0 {
		first = chain[0].By
	}
	if known.Removed(first.String()) {
		return nil, ErrRemoved
	}
	holder, ok := known.Holder(first)
	if !ok {
		return nil, ErrUnknownDevice
	}
	a := &Authority{Subject: holder.Subject, Level: holder.Level, Limits: [][]string{holder.Channels}, End: holder.End, Chain: []Fingerprint{first}}
	issuer := holder.Identity
	for _, g := range chain {
		if err := a.extend(known, host, issuer, g, now); err != nil {
			return nil, err
		}
		issuer = g.Device
	}
	switch {
	case issuer != device:
		return nil, errors.New("the grants are for a different device")
	case !now.Before(a.End):
		return nil, ErrEnded
	}
	return a, nil
}

// extend checks a grant and adds it to the chain.
func (a *Authority) extend(known Registry, host Key, issuer Identity, g *ClaimedGrant, now time.Time) error {
	device := g.Device.Fingerprint()
	switch {
	case g.Host != HostFingerprint(host):
		return errors.New("grant for a different host")
	case g.By != issuer.Fingerprint() || !issuer.Verifier.verify(signedGrant(g.body), g.signature):
		return errors.New("grant that its issuer has not signed")
	case !a.Level.Includes(g.Level):
		return errors.New("grant with a higher level than its issuer's")
	case a.Level != auth.AccessAdmin && g.Subject != a.Subject:
		return errors.New("grant for a different person, by a device that does not own the host")
	case known.Removed(device.String()), known.Removed(g.Serial):
		return ErrRemoved
	case g.From.After(now.Add(clockSkew)):
		return errors.New("grant from the future: set the clocks")
	}
	if g.End.Before(a.End) {
		a.End = g.End
	}
	a.Subject, a.Level = g.Subject, g.Level
	a.Limits, a.Chain, a.Serials = append(a.Limits, g.Channels), append(a.Chain, device), append(a.Serials, g.Serial)
	return nil
}
