// Command go-client prints a host's messages about its root, across drops:
//
//	go run ./docs/examples/go-client 'ws://127.0.0.1:8484/ahp/demo?access_token=…'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/coder/websocket"
)

type said struct{ ServerSeq, FromSeq int64 }

func main() {
	request := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"go-example","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"]}}`
	for seen := int64(-1); ; time.Sleep(time.Second) {
		if seen >= 0 { // the host sends the missed actions
			request = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{"channel":"ahp-root://","clientId":"go-example","lastSeenServerSeq":%d,"subscriptions":["ahp-root://"]}}`, seen)
		}
		err := follow(context.Background(), os.Args[1], request, &seen)
		if log.Print(err); websocket.CloseStatus(err) >= 4500 { // a reconnect would not help
			os.Exit(1)
		}
	}
}

func follow(ctx context.Context, url, request string, seen *int64) error {
	ws, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1) // states are large
	for err = ws.Write(ctx, websocket.MessageText, []byte(request)); err == nil; {
		var data []byte
		if _, data, err = ws.Read(ctx); err == nil {
			fmt.Printf("%s\n", data)
			var m struct {
				Params *said
				Result struct{ Actions, Snapshots []*said }
			}
			err = json.Unmarshal(data, &m)
			for _, s := range append(append(m.Result.Actions, m.Result.Snapshots...), m.Params) {
				if s != nil {
					*seen = max(*seen, s.ServerSeq, s.FromSeq)
				}
			}
		}
	}
	return err
}
