package ahp_test

import (
	"errors"
	"fmt"

	"ahprelay/ahp"
)

func ExamplePeek() {
	frame := []byte(`{"jsonrpc":"2.0","id":"7a","method":"subscribe","params":{"channel":"mock:/1"}}`)
	e, err := ahp.Peek(frame)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%v %s on %s, id %s\n", e.Kind, e.Method, e.Channel, e.ID)

	_, err = ahp.Peek([]byte(`{"method":"ping","params":{"channel":"a","channel":"b"}}`))
	var refused *ahp.FrameError
	fmt.Println(errors.As(err, &refused), err)
	// Output:
	// request subscribe on mock:/1, id "7a"
	// true byte 41: "channel" given twice
}

func ExampleMembers() {
	want := []ahp.Member{{Name: "uri"}, {Name: "encoding"}}
	if err := ahp.Members([]byte(`{"channel":"ahp-root://","uri":"file:\/\/\/a"}`), want); err != nil {
		panic(err)
	}
	uri, ok := ahp.Text(want[0].Raw)
	fmt.Println(uri, ok, want[1].Raw == nil)
	// Output: file:///a true true
}

func ExampleAppendResult() {
	ping, err := ahp.Peek([]byte(`{"id":7,"method":"ping"}`))
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", ahp.AppendResult(nil, ping.ID, nil))
	// Output: {"jsonrpc":"2.0","id":7,"result":null}
}
