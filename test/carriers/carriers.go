// Package carriers lists every kind of message in which a host may send a channel's
// state or a change of it. Tests of all code that reads hosts' messages use this list.
package carriers

import (
	"fmt"
	"strconv"
	"strings"
)

// Versions lists AHP's versions, as a host writes them in its answer to initialize.
var Versions = []string{"0.8.0", "0.9.0", "0.10.0", "1.0.0", "1.1.0"}

// A Part is what a message carries: a channel's state, or an action on the channel.
type Part struct {
	Channel string
	JSON    string // the state or the action
	Seq     int    // fromSeq of the state, or serverSeq of the action
	More    string // further members of the action's envelope, such as ,"origin":…
	ID      int    // id for requests; each Part of a connection has a different id
}

func (p *Part) snapshot() string {
	return fmt.Sprintf(`{"resource":%q,"state":%s,"fromSeq":%d}`, p.Channel, p.JSON, p.Seq)
}

func (p *Part) envelope() string {
	return fmt.Sprintf(`{"channel":%q,"action":%s,"serverSeq":%d%s}`, p.Channel, p.JSON, p.Seq, p.More)
}

// A Message is a message with its direction.
type Message struct {
	FromHost bool
	Text     string
}

// A Carrier is a kind of message in which hosts send a Part.
type Carrier struct {
	Name   string
	Method string // method of the notification, or of the request that the message answers
	Since  string // first version in which hosts use this kind
	Action bool   // it carries an action; otherwise a state
	Pieces bool   // the content comes in pieces, so a reader cannot change it

	// Wrap returns the messages that lead to the Part. The last message carries it, and
	// the messages before are the client's requests.
	Wrap func(p Part) []Message
}

// All lists all carriers.
var All = []Carrier{
	{Name: "initialize", Method: "initialize", Since: "0.8.0", Wrap: func(p Part) []Message {
		return asked(p, "initialize", `"clientId":"c","protocolVersions":["1.1.0"],"capabilities":{"canvas":{},"mcpApps":{}},"initialSubscriptions":[`+quote(p.Channel)+`]`,
			`{"protocolVersion":"1.1.0","serverSeq":`+strconv.Itoa(p.Seq)+`,"snapshots":[`+p.snapshot()+`]}`)
	}},
	{Name: "subscribe", Method: "subscribe", Since: "0.8.0", Wrap: func(p Part) []Message {
		return []Message{
			{false, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%q}}`, p.ID, p.Channel)},
			{true, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"snapshot":%s}}`, p.ID, p.snapshot())},
		}
	}},
	{Name: "reconnect, snapshots", Method: "reconnect", Since: "0.8.0", Wrap: func(p Part) []Message {
		return asked(p, "reconnect", flat(p), `{"type":"snapshot","snapshots":[`+p.snapshot()+`]}`)
	}},
	{Name: "reconnect, snapshots and windows", Method: "reconnect", Since: "1.1.0", Wrap: func(p Part) []Message {
		return asked(p, "reconnect", flat(p)+windows, `{"windows":{"items":[]},"type":"snapshot","snapshots":[`+p.snapshot()+`]}`)
	}},
	{Name: "reconnect, snapshots by channel", Method: "reconnect", Since: "1.1.0", Wrap: func(p Part) []Message {
		return asked(p, "reconnect", byChannel(p), `{"channels":[{"kind":"missing","channel":"x:/1"},{"kind":"snapshot","channel":`+quote(p.Channel)+`,"snapshot":`+p.snapshot()+`}]}`)
	}},
	{Name: "channel/snapshot", Method: "channel/snapshot", Since: "1.1.0", Wrap: func(p Part) []Message {
		return says(p.channelSnapshot())
	}},
	{Name: "channel/snapshot in one frame", Method: "channel/frame", Since: "1.1.0", Pieces: true, Wrap: func(p Part) []Message {
		return frames(p, p.channelSnapshot(), 1)
	}},
	{Name: "channel/snapshot in frames", Method: "channel/frame", Since: "1.1.0", Pieces: true, Wrap: func(p Part) []Message {
		return frames(p, p.channelSnapshot(), 5)
	}},

	{Name: "action", Method: "action", Since: "0.8.0", Action: true, Wrap: func(p Part) []Message { return says(p.action()) }},
	{Name: "reconnect, replay", Method: "reconnect", Since: "0.8.0", Action: true, Wrap: func(p Part) []Message {
		return asked(p, "reconnect", flat(p), `{"type":"replay","actions":[`+p.envelope()+`],"missing":["x:/1"]}`)
	}},
	{Name: "reconnect, replay and windows", Method: "reconnect", Since: "1.1.0", Action: true, Wrap: func(p Part) []Message {
		return asked(p, "reconnect", flat(p)+windows, `{"windows":{"items":[]},"type":"replay","actions":[`+p.envelope()+`],"missing":[]}`)
	}},
	{Name: "reconnect, replay by channel", Method: "reconnect", Since: "1.1.0", Action: true, Wrap: func(p Part) []Message {
		return asked(p, "reconnect", byChannel(p), `{"channels":[{"kind":"replay","channel":`+quote(p.Channel)+`,"actions":[`+p.envelope()+`]}]}`)
	}},
	{Name: "action in one frame", Method: "channel/frame", Since: "1.1.0", Action: true, Pieces: true, Wrap: func(p Part) []Message {
		return frames(p, p.action(), 1)
	}},
	{Name: "action in frames", Method: "channel/frame", Since: "1.1.0", Action: true, Pieces: true, Wrap: func(p Part) []Message {
		return frames(p, p.action(), 7)
	}},
}

// Of returns the carriers that hosts with a version use.
func Of(version string) (list []Carrier) {
	rank := map[string]int{}
	for i, v := range Versions {
		rank[v] = i
	}
	for _, c := range All {
		if rank[c.Since] <= rank[version] {
			list = append(list, c)
		}
	}
	return list
}

// Greeting returns the first messages of a connection to a host with a version:
// initialize and its response.
func Greeting(version, clientID, capabilities string) []Message {
	return []Message{
		{false, fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"channel":"ahp-root://","protocolVersions":["1.1.0","0.9.0"],"clientId":%q,"capabilities":%s}}`, clientID, capabilities)},
		{true, fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":%q,"serverSeq":0,"snapshots":[]}}`, version)},
	}
}

const windows = `,"windows":{"items":[]}`

func flat(p Part) string {
	return `"clientId":"c","lastSeenServerSeq":0,"subscriptions":["x:/1",` + quote(p.Channel) + `]`
}

func byChannel(p Part) string {
	return `"clientId":"c","subscriptions":[{"channel":"x:/1","lastSeenServerSeq":0},{"channel":` + quote(p.Channel) + `,"lastSeenServerSeq":0}]`
}

func (p *Part) action() string {
	return `{"jsonrpc":"2.0","method":"action","params":` + p.envelope() + `}`
}

func (p *Part) channelSnapshot() string {
	return `{"jsonrpc":"2.0","method":"channel/snapshot","params":{"channel":` + quote(p.Channel) + `,"snapshot":` + p.snapshot() + `}}`
}

func says(text string) []Message { return []Message{{true, text}} }

func asked(p Part, method, params, result string) []Message {
	return []Message{
		{false, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":"ahp-root://",%s}}`, p.ID, method, params)},
		{true, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%s}`, p.ID, result)},
	}
}

// frames cuts a message into n pieces, each in its own message.
func frames(p Part, text string, n int) (list []Message) {
	runes := []rune(text)
	for i := range n {
		data := string(runes[i*len(runes)/n : (i+1)*len(runes)/n])
		final := ""
		if i == n-1 {
			final = `,"final":true`
		}
		list = append(list, says(`{"jsonrpc":"2.0","method":"channel/frame","params":{"channel":`+quote(p.Channel)+`,"data":`+quote(data)+final+`}}`)...)
	}
	return list
}

func quote(s string) string { return strings.ReplaceAll(strconv.Quote(s), `\x00`, `\u0000`) }
