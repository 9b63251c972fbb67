package agenthost

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestWindowsCarryEveryMessage sends random texts through a window with random limits,
// and gives credit now and then. Every text arrives complete and in order. No frame is
// above the limit, and no frame is sent without credit.
func TestWindowsCarryEveryMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := receiveLimits{
			WindowBytes:         rapid.Int64Range(1, 400).Draw(t, "window"),
			MaximumFrameBytes:   rapid.Int64Range(1, 500).Draw(t, "frame"),
			MaximumMessageBytes: 1 << 20,
		}
		host, err := New(Config{Protocol: NewestProtocol})
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		c := &conn{host: host, out: newOutbox(1 << 30), done: make(chan struct{}), subs: map[string]*subscription{}, client: &client{}}
		w := newWindow("x:/1", limits)
		if w == nil {
			if limits.MaximumFrameBytes >= 300 {
				t.Fatalf("newWindow refuses frames of %d bytes; want a window from 300 bytes", limits.MaximumFrameBytes)
			}
			return
		}
		c.subs["x:/1"] = &subscription{channel: "x:/1", window: w}
		w.open = true
		texts := rapid.SliceOfN(rapid.StringN(1, 40, -1), 1, 20).Draw(t, "texts")
		for i, text := range texts { // in the form that the text has in JSON
			var plain string
			if err := json.Unmarshal(encode(text), &plain); err != nil {
				t.Fatal(err)
			}
			texts[i] = plain
		}
		var got []string
		var partial string
		var received, credited int64
		read := func() {
			for len(c.out.frames) > 0 {
				raw, _ := c.out.next()
				if size := utf16Bytes(string(raw)); int64(size) > limits.MaximumFrameBytes {
					t.Fatalf("a frame of %d bytes; want %d at most", size, limits.MaximumFrameBytes)
				}
				var frame struct{ Params channelFrame }
				if err := json.Unmarshal(raw, &frame); err != nil || frame.Params.Data == "" {
					t.Fatalf("reading the frame %s: %v; want data", raw, err)
				}
				if partial == "" && received-credited >= limits.WindowBytes {
					t.Fatalf("a message begins with %d bytes under way; want less than %d", received-credited, limits.WindowBytes)
				}
				partial += frame.Params.Data
				if frame.Params.Final {
					got = append(got, partial)
					received += int64(utf16Bytes(partial))
					partial = ""
				}
			}
		}
		credit := func() {
			credited = received
			c.creditLocked(encode(map[string]any{"channel": "x:/1", "consumedBytes": credited}))
		}
		for _, text := range texts {
			c.pushLocked(w, text)
			if rapid.Bool().Draw(t, "reads") {
				read()
			}
			if rapid.Bool().Draw(t, "credits") {
				credit()
			}
		}
		for range texts {
			read()
			credit()
		}
		read()
		if !slices.Equal(got, texts) {
			t.Fatalf("got %q; want %q", got, texts)
		}
	})
}

// TestWindowCountsUTF16OfTheClient sends pieces of a message that has exactly the permitted length
// in UTF-16, and then one character more. Only the longer message ends the subscription, whatever
// its length in UTF-8.
func TestWindowCountsUTF16OfTheClient(t *testing.T) {
	host, err := New(Config{Protocol: NewestProtocol})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, letter := range []string{"a", "語"} {
		c := &conn{host: host, out: newOutbox(1 << 30), done: make(chan struct{}), subs: map[string]*subscription{}, client: &client{}}
		c.subs["x:/1"] = &subscription{channel: "x:/1", window: newWindow("x:/1", hostReceive)}
		says := func(letters int64) bool {
			c.frameLocked(encode(channelFrame{Channel: "x:/1", Data: strings.Repeat(letter, int(letters))}))
			return c.windowOf("x:/1") != nil
		}
		if !says(hostReceive.MaximumMessageBytes/2-1) || !says(1) {
			t.Errorf("%s: a message of %d bytes of UTF-16 ends the subscription", letter, hostReceive.MaximumMessageBytes)
		}
		if says(1) {
			t.Errorf("%s: a longer message does not end the subscription", letter)
		}
	}
}

// TestAbandonedRequestIsForgotten: the connection that needs a client's answer ends. The host
// forgets its request to that client.
func TestAbandonedRequestIsForgotten(t *testing.T) {
	host, err := New(Config{Protocol: NewestProtocol})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	asking, asked := &conn{done: make(chan struct{})}, &conn{host: host, out: newOutbox(1 << 20), done: make(chan struct{})}
	close(asking.done)
	host.clients["ada"] = &client{id: "ada", conns: []*conn{asked}}
	if _, err := host.ask(asking, "ada", "resourceRead", nil); err == nil {
		t.Error("ask for an ended connection succeeds; want an error")
	}
	delete(host.clients, "ada")
	if n := len(host.reverse.pending); n > 0 {
		t.Errorf("%d requests are open; want none", n)
	}
}
