package ahp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"ahprelay/ahp"
)

// actionFrame returns an action as real hosts write it, exactly size bytes long.
func actionFrame(size int) []byte {
	const frame = `{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/6a57e4a6-8a41-433f-9d1a-2017b182507d",` +
		`"action":{"type":"session/delta","turnId":"a6c7a0d4","partId":"part-1","content":"%s"},` +
		`"serverSeq":2402,"origin":{"clientId":"client-a","clientSeq":3}}}`
	return fmt.Appendf(nil, frame, bytes.Repeat([]byte("x"), size-len(frame)+len("%s")))
}

// stateFrame returns an action of about size bytes with many small members, as in a snapshot.
func stateFrame(size int) []byte {
	const part = `{"kind":"markdown","id":"part-17","content":"Some text,\n and \"more\" of it","tokens":1234,"done":true},`
	parts := bytes.TrimSuffix(bytes.Repeat([]byte(part), size/len(part)), []byte(","))
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-root://",`+
		`"action":{"type":"x","parts":[%s]},"serverSeq":7}}`, parts)
}

func benchmarkPeek(b *testing.B, frame []byte) {
	if !json.Valid(frame) {
		b.Fatalf("not JSON: %s", frame)
	}
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ahp.Peek(frame); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPeek280B(b *testing.B) { benchmarkPeek(b, actionFrame(280)) }
func BenchmarkPeek512B(b *testing.B) { benchmarkPeek(b, actionFrame(512)) }
func BenchmarkPeek24KB(b *testing.B) { benchmarkPeek(b, stateFrame(24<<10)) }
func BenchmarkPeek1MB(b *testing.B)  { benchmarkPeek(b, stateFrame(1<<20)) }

// These two measure a long string: of letters, and of Chinese characters.
func BenchmarkPeek1MBText(b *testing.B) { benchmarkPeek(b, actionFrame(1<<20)) }
func BenchmarkPeek1MBHan(b *testing.B) {
	benchmarkPeek(b, bytes.ReplaceAll(actionFrame(1<<20), []byte("xxx"), []byte("漢")))
}

func BenchmarkSeq(b *testing.B) {
	e, err := ahp.Peek(actionFrame(512))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Said.Seq(); err != nil {
			b.Fatal(err)
		}
	}
}
