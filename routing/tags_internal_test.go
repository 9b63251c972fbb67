package routing

import (
	"bytes"
	"testing"

	"ahprelay/broker/link"
)

// A keepingClient records the bytes that it receives.
type keepingClient struct {
	still
	got []byte
}

func (k *keepingClient) Deliver(frames []Frame) {
	for _, f := range frames {
		k.got = append(k.got, f.Data...)
	}
}

// TestTagWaitsForItsBody passes to a relay references with tags and their body, in either order.
// Each client must receive the body and then its own tag. A client that has left gets nothing, and
// must not shift the tags for others.
func TestTagWaitsForItsBody(t *testing.T) {
	encode := func(piece []byte, _, _, binary bool) []byte {
		if !binary {
			t.Errorf("the piece %q is text; want it binary", piece)
		}
		return append(append([]byte("<"), piece...), '>')
	}
	for _, first := range []bool{true, false} { // whether the body comes first
		r := NewRelayEnd(RelayEndConfig{Agent: "agent", Encode: encode})
		r.Start(link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20, Features: []string{link.FeatureSealed}}, &still{})
		var clients []*keepingClient
		set, tags := connSet{}, []byte{}
		for i := range 4 {
			c := &keepingClient{}
			conn, err := r.Open(Open{ID: "x", Sealed: true}, c)
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
			set.add(conn.stream.conn)
			tags = append(tags, bytes.Repeat([]byte{byte('a' + i)}, TagSize)...)
			if i == 1 {
				conn.Close(1000, "")
			}
		}
		refs := record(recordTagged, 1, 1)
		refs, _ = appendBodyList(refs, []uint64{1}, 1)
		refs = append(set.append(refs), tags...)
		body := recordWith("body", recordBody, 1)
		packets := [][]byte{refs, body}
		if first {
			packets = [][]byte{body, refs}
		}
		for i, p := range packets {
			if _, err := r.Handle(uint64(i+1), p); err != nil {
				t.Fatal(err)
			}
		}
		for i, c := range clients {
			want := "<body><\x08" + string(bytes.Repeat([]byte{byte('a' + i)}, TagSize)) + ">"
			if i == 1 {
				want = ""
			}
			if string(c.got) != want {
				t.Errorf("client %d received %q; want %q", i, c.got, want)
			}
		}
		if _, err := r.Handle(3, refs[:len(refs)-1]); err == nil {
			t.Error("Handle accepts a tag that is cut short; want an error")
		}
	}
}
