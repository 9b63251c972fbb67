package hostrecord_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/agenthost"
	"ahprelay/test/hostrecord"
)

// TestTruncatedRecordIsFound reads a complete record, and the same record without its
// end.
func TestTruncatedRecordIsFound(t *testing.T) {
	want := []agenthost.Frame{
		{Conn: 1, Received: true, Data: []byte("{\n}")},
		{Conn: 12, Data: []byte(`{"a":"\u2028"}`)},
		{Conn: 1, Data: []byte{}},
	}
	var file bytes.Buffer
	record := hostrecord.To(&file)
	for _, f := range want {
		record(f)
	}
	got, err := hostrecord.Read(bytes.NewReader(file.Bytes()))
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Read(), %v: -want +got\n%s", err, diff)
	}
	for cut := range file.Len() {
		got, err := hostrecord.Read(bytes.NewReader(file.Bytes()[:cut]))
		if err != nil || len(got) >= len(want) || len(got) > 0 && !cmp.Equal(got, want[:len(got)]) {
			t.Errorf("Read of the record's first %d bytes = %v, %v; want its whole entries only", cut, got, err)
		}
	}
}
