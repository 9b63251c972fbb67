package sealed

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// seeds returns the vectors.
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

// FuzzCode checks that a code is read back as it was shown.
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
			t.Errorf("%q is %s, and then %s, %v", text, code, again, err)
		}
	})
}

// FuzzGrant checks that a grant has one text only.
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
			t.Errorf("%q is accepted as %+v", text, g.Grant)
		}
	})
}

// FuzzPairLink checks that a link is read back as it was made.
func FuzzPairLink(f *testing.F) {
	f.Add(PairLink{"https://relay.example.com", "laptop", Code(fixed(1, 16)), Fingerprint(fixed(2, 16))}.String())
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParsePairLink(text)
		if err != nil {
			return
		}
		if again, err := ParsePairLink(l.String()); err != nil || again != l {
			t.Errorf("%q is %+v, and then %+v, %v", text, l, again, err)
		}
	})
}

// FuzzRecord gives a session plaintexts that only a peer with the keys can send: no
// plaintext may panic, or open as more than it has.
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
			frame := out.aead.Seal([]byte{byte(kindRecord)}, nonce, plain, recordAD)
			content, body, done, err := s.Open(frame)
			if err == nil && done && (content >= contents || content == packed || len(body) > s.limit) {
				t.Errorf("opens as content %d with %d bytes", content, len(body))
			}
		}
	})
}

// FuzzHandshake gives both ends arbitrary frames in place of one of the peer's.
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
			t.Errorf("the handshake succeeds with frame %d changed to %x", n, frame)
		}
	})
}

// FuzzGreeting reads a greeting as a host-agent does.
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
			t.Errorf("%q has a signing key off the curve", data)
		}
	})
}
