package ahp_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"ahprelay/ahp"
)

func TestResultKeepsTheIDsSpelling(t *testing.T) {
	tests := []struct{ id, result, want string }{
		{`7`, ``, `{"jsonrpc":"2.0","id":7,"result":null}`},
		{`"\u0061"`, `{"a":1}`, `{"jsonrpc":"2.0","id":"\u0061","result":{"a":1}}`},
		{`1.50`, `[]`, `{"jsonrpc":"2.0","id":1.50,"result":[]}`},
	}
	for _, test := range tests {
		var result []byte
		if test.result != "" {
			result = []byte(test.result)
		}
		if got := ahp.AppendResult([]byte("before"), []byte(test.id), result); string(got) != "before"+test.want {
			t.Errorf("AppendResult(before, %s, %s) = %s; want before and then %s", test.id, test.result, got, test.want)
		}
	}
}

func TestErrorKeepsTheIDsSpelling(t *testing.T) {
	tests := []struct {
		id      []byte
		code    int
		message string
		data    []byte
		want    string
	}{
		{[]byte(`7`), ahp.CodeHostOffline, "host offline", nil,
			`{"jsonrpc":"2.0","id":7,"error":{"code":4100,"message":"host offline"}}`},
		{nil, ahp.CodeParseError, "Parse error", nil,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`},
		{[]byte(`"a"`), ahp.CodeAuthRequired, "a <b>\"\\\n\x1fé\u2028", []byte(`{"resources":[]}`),
			`{"jsonrpc":"2.0","id":"a","error":{"code":-32007,"message":"a <b>\"\\\u000a\u001fé` + "\u2028" + `","data":{"resources":[]}}}`},
		// The answer must be valid UTF-8 even if the message is not.
		{[]byte(`1`), 0, "a\xffb", nil, `{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"a` + "\ufffd" + `b"}}`},
	}
	for _, test := range tests {
		got := ahp.AppendError([]byte("before"), test.id, test.code, test.message, test.data)
		if string(got) != "before"+test.want {
			t.Errorf("AppendError(before, %s, %d, %q, %s) = %s; want before and then %s",
				test.id, test.code, test.message, test.data, got, test.want)
		}
	}
}

// FuzzAppendError parses the answers of AppendError, which must contain the given id, code and
// message.
func FuzzAppendError(f *testing.F) {
	f.Add("host offline", -32009)
	f.Add("\"\\\x00\xff\u2029", 1)
	f.Fuzz(func(t *testing.T, message string, code int) {
		id := []byte(`"\u0061"`)
		frame := ahp.AppendError(nil, id, code, message, []byte(`{"a":[]}`))
		e, err := ahp.Peek(frame)
		if err != nil || e.Kind != ahp.Response || string(e.ID) != string(id) {
			t.Fatalf("Peek(%q) = %v, %v; want the response to %s", frame, e, err, id)
		}
		var got struct {
			Code    int
			Message string
			Data    json.RawMessage
		}
		if err := json.Unmarshal(e.Error, &got); err != nil {
			t.Fatalf("Unmarshal(%q): %v; want no error", e.Error, err)
		}
		if got.Code != code || string(got.Data) != `{"a":[]}` || utf8.ValidString(message) && got.Message != message {
			t.Fatalf("AppendError(%d, %q) is read as %d, %q, %s; want the same code, message and data", code, message, got.Code, got.Message, got.Data)
		}
	})
}
