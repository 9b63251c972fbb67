package ahp_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
)

func TestReadInitializeParams(t *testing.T) {
	tests := []struct {
		in   string
		want ahp.InitializeParams
	}{
		{`{"channel":"ahp-root://","clientId":"a","protocolVersions":["0.9.0","0.8.1"],"capabilities":{"canvas":{}}}`,
			ahp.InitializeParams{ClientID: "a", ProtocolVersions: []string{"0.9.0", "0.8.1"}, Capabilities: []byte(`{"canvas":{}}`)}},
		{`{"clientId":"\u0061\/\ud83d\ude00","protocolVersions":[ "\u0030" , "1" ] }`,
			ahp.InitializeParams{ClientID: "a/😀", ProtocolVersions: []string{"0", "1"}}},
		{`{"protocolVersions":[ ]}`, ahp.InitializeParams{}},
		{`{"protocolVersions":["]",","]}`, ahp.InitializeParams{ProtocolVersions: []string{"]", ","}}},
		{`{}`, ahp.InitializeParams{}},
	}
	for _, test := range tests {
		got, err := ahp.ReadInitializeParams([]byte(test.in))
		if err != nil {
			t.Errorf("ReadInitializeParams(%s): %v", test.in, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ReadInitializeParams(%s) (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestReadInitializeResult(t *testing.T) {
	tests := []struct {
		in   string
		want ahp.InitializeResult
	}{
		{`{"protocolVersion":"0.9.0","serverSeq":3,"snapshots":[],"serverInfo":{"name":"host"}}`,
			ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"host"}`)}},
		{`{"protocolVersion":"0.9.0"}`, ahp.InitializeResult{ProtocolVersion: "0.9.0"}},
		{`{}`, ahp.InitializeResult{}},
	}
	for _, test := range tests {
		got, err := ahp.ReadInitializeResult([]byte(test.in))
		if err != nil {
			t.Errorf("ReadInitializeResult(%s): %v", test.in, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ReadInitializeResult(%s) (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestReadReconnectParams(t *testing.T) {
	tests := []struct {
		in   string
		want ahp.ReconnectParams
	}{
		{`{"clientId":"a","lastSeenServerSeq":2403,"subscriptions":["ahp-root://","mock:/1"],"windows":[]}`,
			ahp.ReconnectParams{ClientID: "a", LastSeenServerSeq: 2403, Subscriptions: []string{"ahp-root://", "mock:/1"}}},
		{`{}`, ahp.ReconnectParams{}},
	}
	for _, test := range tests {
		got, err := ahp.ReadReconnectParams([]byte(test.in))
		if err != nil {
			t.Errorf("ReadReconnectParams(%s): %v", test.in, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ReadReconnectParams(%s) (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestSeq(t *testing.T) {
	tests := []struct {
		in   string
		want int64
	}{
		{`2403`, 2403},
		// An integer has many forms.
		{`24.03e2`, 2403},
		{`-0`, 0},
		{`0`, 0},
		{`-17`, -17},
		{`999999999999999`, 999999999999999},
		{`1000000000000000`, 1000000000000000},
		{`9007199254740991`, 1<<53 - 1},
		{``, 0},
	}
	for _, test := range tests {
		s := ahp.Said{}
		if test.in != "" {
			s.ServerSeq = []byte(test.in)
		}
		if got, err := s.Seq(); err != nil || got != test.want {
			t.Errorf("Seq of %s = %d, %v; want %d", test.in, got, err, test.want)
		}
	}
	for _, in := range []string{`1.5`, `9007199254740992`, `-9007199254740992`, `-1e999`, `{}`, `"1"`, `null`, `99999999999999999999999`} {
		s := ahp.Said{ServerSeq: []byte(in)}
		if got, err := s.Seq(); err == nil || got != 0 || err.Error() != `byte 0: "serverSeq" is not an integer` {
			t.Errorf("Seq of %s = %d, %v; want a refusal", in, got, err)
		}
	}
}

func TestReadersRefuse(t *testing.T) {
	tests := []struct {
		read       func([]byte) error
		in, reason string
	}{
		{readInitializeParams, `{"clientId":1}`, `"clientId" is not a string`},
		{readInitializeParams, `{"clientId":null}`, `"clientId" is not a string`},
		{readInitializeParams, `{"clientId":"\ud800"}`, `"clientId" has a lone surrogate`},
		{readInitializeParams, `{"clientId":"a","clientId":"b"}`, `"clientId" given twice`},
		{readInitializeParams, `{"protocolVersions":"0.9.0"}`, `"protocolVersions" is not an array`},
		{readInitializeParams, `{"protocolVersions":["0.9.0",1]}`, `"protocolVersions" has an element that is not a string`},
		{readInitializeParams, `{"protocolVersions":[["0.9.0"]]}`, `"protocolVersions" has an element that is not a string`},
		{readInitializeParams, `{"capabilities":{},"capabilities":{}}`, `"capabilities" given twice`},
		{readInitializeParams, `[]`, notObject},
		{readInitializeResult, `{"protocolVersion":9}`, `"protocolVersion" is not a string`},
		{readInitializeResult, ``, notObject},
		{readReconnectParams, `{"clientId":{}}`, `"clientId" is not a string`},
		{readReconnectParams, `{"lastSeenServerSeq":"1"}`, `"lastSeenServerSeq" is not an integer`},
		{readReconnectParams, `{"subscriptions":null}`, `"subscriptions" is not an array`},
		{readReconnectParams, `{"subscriptions":[],"subscriptions":[]}`, `"subscriptions" given twice`},
		{readReconnectParams, `null`, notObject},
		// Beyond 2^53 parsers disagree on the value.
	}
	for _, test := range tests {
		err := test.read([]byte(test.in))
		var refused *ahp.FrameError
		if !errors.As(err, &refused) || refused.Reason != test.reason {
			t.Errorf("reading %s: %v; want %s", test.in, err, test.reason)
		}
	}
}

func readInitializeParams(raw []byte) error {
	_, err := ahp.ReadInitializeParams(raw)
	return err
}

func readInitializeResult(raw []byte) error {
	_, err := ahp.ReadInitializeResult(raw)
	return err
}

func readReconnectParams(raw []byte) error {
	_, err := ahp.ReadReconnectParams(raw)
	return err
}

// FuzzReaders checks no input makes a reader panic or write.
func FuzzReaders(f *testing.F) {
	f.Add([]byte(`{"clientId":"a","protocolVersions":["0.9.0"],"subscriptions":[ "a" ],"serverSeq":1}`))
	f.Add([]byte(`{"subscriptions":[[{}],"\ud800"],"lastSeenServerSeq":1e3}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := string(raw)
		for _, read := range []func([]byte) error{
			readInitializeParams, readInitializeResult, readReconnectParams,
		} {
			var refused *ahp.FrameError
			if err := read(raw); err != nil && !errors.As(err, &refused) {
				t.Fatalf("reading %q: %T; want a *FrameError", raw, err)
			}
		}
		if string(raw) != before {
			t.Fatalf("reading %q made it %q", before, raw)
		}
	})
}
