package ahp_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
)

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
			t.Errorf("ReadInitializeResult(%s): %v; want no error", test.in, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ReadInitializeResult(%s) (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestSeqReadsEachFormOfAnInteger(t *testing.T) {
	tests := []struct {
		in   string
		want int64
	}{
		{`2403`, 2403},
		// A JSON integer may have an exponent.
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

func TestReadInitializeResultRefuses(t *testing.T) {
	tests := []struct {
		in, reason string
	}{
		{`{"protocolVersion":null}`, `"protocolVersion" is not a string`},
		{`{"protocolVersion":"\ud800"}`, `"protocolVersion" has a lone surrogate`},
		{`{"protocolVersion":"a","protocolVersion":"b"}`, `"protocolVersion" given twice`},
		{`[]`, notObject},
		{`{"protocolVersion":9}`, `"protocolVersion" is not a string`},
		{``, notObject},
	}
	for _, test := range tests {
		_, err := ahp.ReadInitializeResult([]byte(test.in))
		var refused *ahp.FrameError
		if !errors.As(err, &refused) || refused.Reason != test.reason {
			t.Errorf("reading %s: %v; want %s", test.in, err, test.reason)
		}
	}
}

// FuzzReadInitializeResult fails if the reader panics, changes its input, or returns another type
// of error.
func FuzzReadInitializeResult(f *testing.F) {
	f.Add([]byte(`{"protocolVersion":"0.9.0","serverInfo":{"name":"host"},"snapshots":[ "a" ],"serverSeq":1}`))
	f.Add([]byte(`{"snapshots":[[{}],"\ud800"],"protocolVersion":1e3}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := string(raw)
		var refused *ahp.FrameError
		if _, err := ahp.ReadInitializeResult(raw); err != nil && !errors.As(err, &refused) {
			t.Fatalf("reading %q: %T; want a *FrameError", raw, err)
		}
		if string(raw) != before {
			t.Fatalf("reading %q has changed it to %q; want it as it was", before, raw)
		}
	})
}
