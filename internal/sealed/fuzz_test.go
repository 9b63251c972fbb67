package sealed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"testing"
)

// seeds reads testdata/vectors.json.
func seeds(f *testing.F) *vectors {
	f.Helper()
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		f.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		f.Fatal(err)
	}
	return &v
}

// FuzzCode parses arbitrary text as a code. The text of an accepted code must parse as the same
// code.
func FuzzCode(f *testing.F) {
	for _, c := range seeds(f).Codes {
		f.Add(c.Typed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		code, err := ParseCode(text)
		if err != nil {
			return
		}
		if again, err := ParseCode(code.String()); err != nil || again != code {
			t.Errorf("ParseCode(%q) = %s, which is read as %s, %v; want the same", text, code, again, err)
		}
	})
}

// FuzzGrant parses arbitrary text as a grant. An accepted grant must be valid, and end within
// MaxLife.
func FuzzGrant(f *testing.F) {
	v := seeds(f)
	for _, g := range v.Grants {
		f.Add(g.Text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ReadGrant(text)
		if err != nil {
			return
		}
		if g.check() != nil || g.End.Sub(g.From) > MaxLife {
			t.Errorf("ReadGrant(%q) = %+v; want an error", text, g.Grant)
		}
	})
}

// A vectorBody is the body of a grant in testdata/bodies.json. OK says whether each implementation
// must accept it.
type vectorBody struct {
	Name string   `json:"name"`
	Body hexBytes `json:"body"`
	OK   bool     `json:"ok"`
}

// vectorBodies reads testdata/bodies.json.
func vectorBodies(t testing.TB) (list []vectorBody) {
	t.Helper()
	data, err := os.ReadFile("testdata/bodies.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// withBody returns the text of a grant with a body and an invalid signature.
func withBody(body []byte) string {
	return base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(make([]byte, signatureSize))
}

// TestBodiesOfGrants parses the bodies in testdata/bodies.json as grants. ReadGrant must accept
// exactly those marked OK. The console's tests use the same file.
func TestBodiesOfGrants(t *testing.T) {
	for _, b := range vectorBodies(t) {
		if g, err := ReadGrant(withBody(b.Body)); (err == nil) != b.OK {
			t.Errorf("%s: %q is read as %+v, %v; want %v", b.Name, b.Body, g, err, b.OK)
		}
	}
}

// FuzzGrantBody parses arbitrary bodies as grants. An accepted body must contain each member only
// once, by its exact name, with the value that encoding/json finds.
func FuzzGrantBody(f *testing.F) {
	for _, b := range vectorBodies(f) {
		f.Add([]byte(b.Body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		g, err := ReadGrant(withBody(body))
		if err != nil {
			return
		}
		var all map[string]any
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"host": g.Host.String(), "by": g.By.String(), "key": base64.RawURLEncoding.EncodeToString(g.Device.Key[:]),
			"verifier": base64.RawURLEncoding.EncodeToString(g.Device.Verifier[:]), "subject": g.Subject, "level": string(g.Level),
			"from": float64(g.From.Unix()), "end": float64(g.End.Unix()), "serial": g.Serial,
		}
		if _, ok := all["channels"]; ok {
			list := make([]any, 0, len(g.Channels))
			for _, c := range g.Channels {
				list = append(list, c)
			}
			want["channels"] = list
		}
		if !reflect.DeepEqual(all, want) || bytes.Count(body, []byte(":")) < len(want) {
			t.Errorf("the grant %q is read with the members %v; want all its members, %v", body, want, all)
		}
	})
}

// FuzzPairLink parses arbitrary text as a link for pairing. The text of an accepted link must parse
// as the same link.
func FuzzPairLink(f *testing.F) {
	for _, console := range []string{"", "https://console.example.net/"} {
		f.Add(PairLink{console, "https://relay.example.com", "laptop", Code(fixed(1, 16)), Fingerprint(fixed(2, 16))}.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParsePairLink(text)
		if err != nil {
			return
		}
		if again, err := ParsePairLink(l.String()); err != nil || again != l {
			t.Errorf("the link %q is read as %+v, and its text as %+v, %v; want the same", text, l, again, err)
		}
	})
}

// FuzzShareLink parses arbitrary text as a link to a session. The text of an accepted link must
// parse as the same link.
func FuzzShareLink(f *testing.F) {
	device := vectorDevice(f, 1)
	for _, console := range []string{"", "https://console.example.net/"} {
		f.Add(ShareLink{Console: console, Relay: "https://relay.example.com", Host: "laptop", Session: "mock:/1", Key: Key(fixed(3, KeySize)), Device: device, Join: "share.1"}.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseShareLink(text)
		if err != nil {
			return
		}
		again, err := ParseShareLink(l.String())
		if err != nil || again.String() != l.String() || again.Device.Identity() != l.Device.Identity() || again.Session != l.Session || again.Key != l.Key {
			t.Errorf("the link %q is read as %q, and that as %v, %v; want the same", text, l, again, err)
		}
	})
}

// FuzzReply opens arbitrary bytes as a device's reply. Only the reply which the device has written
// may open.
func FuzzReply(f *testing.F) {
	host, err1 := NewSecret()
	device, err2 := NewDevice()
	letter, err3 := device.WriteReply(host.Public(), "event", Reply{Nonce: "n", Option: "allow"})
	if err := errors.Join(err1, err2, err3); err != nil {
		f.Fatal(err)
	}
	f.Add(letter)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ReadReply(data)
		if err != nil {
			return
		}
		if r, err := l.Open(host, device.Identity()); err == nil && (r != Reply{Nonce: "n", Option: "allow"} || l.Event != "event") {
			t.Errorf("the forged reply %q opens as %+v; want only the owner's", data, r)
		}
	})
}

// FuzzRecord gives a session records with arbitrary plaintexts, correctly sealed as by a peer with
// the keys. The session must not panic, and must not deliver more bytes than its limit.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, '{', '}', 0}, []byte{1, 0, 0, 0, 0}, true)
	f.Add(bytes.Repeat([]byte{0}, pieceSize), []byte{0}, false)
	f.Fuzz(func(t *testing.T, first, second []byte, client bool) {
		key := [32]byte{1}
		out, err1 := newHalf(key)
		in, err2 := newHalf(key)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		s := &Session{client: client, limit: 1 << 16, in: in}
		for _, plain := range [][]byte{first, second} {
			nonce, err := out.next(len(plain))
			if err != nil {
				t.Fatal(err)
			}
			frame := out.aead.Seal([]byte{byte(kindRecord)}, nonce, plain, out.recordAD())
			content, body, done, err := s.Open(frame)
			if err == nil && done && (content >= contents || content == packed || len(body) > s.limit) {
				t.Errorf("a record opens as content %d with %d bytes; want a known content within the limit", content, len(body))
			}
		}
	})
}

// FuzzHandshake replaces a frame of a handshake by arbitrary bytes. The handshake must fail.
func FuzzHandshake(f *testing.F) {
	for _, h := range seeds(f).Handshakes {
		for i, frame := range h.Frames {
			f.Add(i, []byte(frame.Bytes))
		}
	}
	var c *cast
	f.Fuzz(func(t *testing.T, n int, frame []byte) {
		if c == nil {
			made := newCast(t)
			c = &made
		}
		icfg, rcfg := c.configs(c.device)
		changed := false
		_, arrival, _, err := handshake(icfg, rcfg, func(i int, honest []byte) []byte {
			if i == n {
				changed = !bytes.Equal(honest, frame)
				return frame
			}
			return honest
		})
		if changed && (err == nil || arrival != nil) {
			t.Errorf("the handshake with frame %d changed to %x succeeds; want an error", n, frame)
		}
	})
}

// FuzzGreeting parses arbitrary bytes as a client's greeting, as a host-agent does. An accepted
// signing key must be a point on the curve.
func FuzzGreeting(f *testing.F) {
	for _, h := range seeds(f).Handshakes {
		f.Add([]byte(h.Greeting))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var g Greeting
		if decode(data, &g) != nil {
			return
		}
		if v, err := g.check(); err == nil && v.check() != nil {
			t.Errorf("the greeting %q has a signing key off the curve; want an error", data)
		}
	})
}
