package routing

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"
)

// FuzzEachClientCanBeAnnounced encodes the opening and the move of a connection for a client with
// arbitrary names and times, since issuers and clients choose these. The host-agent must read the
// same names, and the nearest times that JSON can represent.
func FuzzEachClientCanBeAnnounced(f *testing.F) {
	f.Add("ada", "id", int64(1e9), int64(2e9))
	f.Add("\xff<\u2028\"", "", int64(1_700_000_000_000), int64(-1_700_000_000_000)) // milliseconds
	f.Add("", "\x00", int64(math.MaxInt64), int64(math.MinInt64))
	f.Add("", "", lastTime.Unix()+1, firstTime.Unix()-1)
	f.Fuzz(func(t *testing.T, name, id string, expires, issued int64) {
		end, start := time.Unix(expires, 0), time.Unix(issued, 0)
		open := Open{
			ID: id, Subject: name, Token: id, DeviceID: id, Access: name, Expires: &end, Remote: name, Device: name, Ticket: id, Trace: name,
			Channels: []string{name}, Methods: []string{id}, Canvas: &Canvas{Channel: name, Instance: id, ClientID: name, Authority: id},
		}
		fields := link.Fields{B: appendOpen(nil, 1, open)[1:]}
		fields.Uvarint()
		var got Open
		if err := json.Unmarshal(fields.Bytes(), &got); err != nil || fields.Bad {
			t.Fatal(err)
		}
		if got.Subject != jsonText(t, name) || got.ID != jsonText(t, id) || !got.Expires.Equal(writable(end)) {
			t.Errorf("read %+v; want %+v", got, open)
		}
		holder := auth.Holder{Token: id, Device: id, Subject: name, At: start, Origins: []auth.Origin{{ID: id, Subject: name, Host: name, Issued: issued}}}
		fields = link.Fields{B: appendMove(nil, 1, Move{Ticket: id, Until: end, Holder: holder})[1:]}
		fields.Uvarint()
		fields.Bytes()
		fields.Uvarint()
		var held auth.Holder
		if err := json.Unmarshal(fields.Bytes(), &held); err != nil || fields.Bad {
			t.Fatal(err)
		}
		if held.Subject != jsonText(t, name) || !held.At.Equal(writable(start)) {
			t.Errorf("read %+v; want %+v", held, holder)
		}
	})
}

// jsonText returns text after encoding and decoding as JSON, which replaces invalid UTF-8.
func jsonText(t *testing.T, text string) (read string) {
	t.Helper()
	data, err := json.Marshal(text)
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}
