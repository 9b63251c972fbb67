package routing

import (
	"bytes"
	"testing"
	"time"

	"ahprelay/broker/link"
)

// TestModelCountsAnswersBesideEachKindOfRecord seals packets with an answer behind each kind of record
// from host-agents. CountAnswers must find this answer, and none in the other record's bytes. An
// unknown record must cause an error.
func TestModelCountsAnswersBesideEachKindOfRecord(t *testing.T) {
	answer := recordWith("body", recordBody, 1)
	like := string(bytes.Repeat([]byte{byte(recordBody)}, 40)) // read as records, these bytes contain answers
	count := func(payload []byte) (int, error) {
		l := link.New(link.Config{}, link.WireMax, 300, time.Now())
		return CountAnswers(l.Seal(append(make([]byte, link.HeaderRoom), payload...), time.Now()))
	}
	examples := map[recordKind][][]byte{
		recordFrame: {recordWith(like, recordFrame, 300)},
		recordFragment: {
			recordWith(like, recordFragment, 1, fragmentFirst),
			recordWith(like, recordFragment, 1, fragmentLast|fragmentFed, 2),
		},
		recordClose:    {recordWith(like, recordClose, 1, 4100)},
		recordCredit:   {record(recordCredit, 1, uint64(recordBody))},
		recordOpened:   {record(recordOpened, 1)},
		recordWatch:    {recordWith(like, recordWatch, 1)},
		recordUnwatch:  {record(recordUnwatch, 1)},
		recordRefs:     {refsOf(recordRefs)},
		recordBody:     {nil},
		recordGone:     {record(recordGone, 1)},
		recordReady:    {record(recordReady, 1)},
		recordProbe:    {record(recordProbe, 1)},
		recordFlushed:  {record(recordFlushed, 1)},
		recordChunk:    {recordWith(like, recordChunk, 1, fragmentFirst)},
		recordDrop:     {record(recordDrop, 1)},
		recordChunkRef: {record(recordChunkRef, 1, uint64(recordBody))},
		recordFeed:     {recordWith(like, recordFeed, 1)},
		recordFed:      {recordWith(like, recordFed, 1, 2)},
		recordReport:   {recordWith(like, recordReport, 0)},
		recordTagged:   {append(refsOf(recordTagged), bytes.Repeat([]byte{byte(recordBody)}, 3*TagSize)...)},
		recordMoved:    {record(recordMoved, 1)},
		recordPlace:    {recordWith(like, recordPlace, 1, 1, 1)},
		recordTold:     {recordWith(like, recordTold, 1)},
	}
	for kind := recordFrame; kind <= recordKinds; kind++ {
		if known := kind < recordKinds && relayRecords[kind] != nil; known != (examples[kind] != nil) {
			t.Errorf("the kind %d has %d examples; relays accept it: %v", kind, len(examples[kind]), known)
		}
		if _, err := count(record(kind, 0)); examples[kind] == nil && err == nil {
			t.Errorf("CountAnswers accepts the kind %d, which no host-agent sends; want an error", kind)
		}
		for _, example := range examples[kind] {
			if n, err := count(append(bytes.Clone(example), answer...)); n != 1 || err != nil {
				t.Errorf("beside a record with the kind %d, CountAnswers counts %d answers, %v; want 1", kind, n, err)
			}
			if n, err := count(example); n != 0 || err != nil {
				t.Errorf("in a record with the kind %d, CountAnswers counts %d answers, %v; want 0", kind, n, err)
			}
		}
	}
}

// refsOf returns the beginning of a refs record that names three connections.
func refsOf(kind recordKind) []byte {
	b, _ := appendBodyList(record(kind, 1, 1), []uint64{1, uint64(recordBody)}, 1)
	var set connSet
	for conn := range uint64(3) {
		set.add(conn)
	}
	return set.append(b)
}
