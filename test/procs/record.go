package procs

import (
	"encoding/json"
	"os"

	"ahprelay/test/hostrecord"
)

// A HostConn is the host's record of a client's frames.
type HostConn struct{ Sent, Received [][]byte }

// HostConns reads the record of the host's first run. It returns the record of each
// client, by clientId.
func (s *Site) HostConns() (map[string]*HostConn, error) {
	f, err := os.Open(s.Records()[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	frames, err := hostrecord.Read(f)
	if err != nil {
		return nil, err
	}
	numbered, byID := map[int64]*HostConn{}, map[string]*HostConn{}
	for _, frame := range frames {
		c := numbered[frame.Conn]
		if c == nil {
			c = &HostConn{}
			numbered[frame.Conn] = c
		}
		if !frame.Received {
			c.Sent = append(c.Sent, frame.Data)
			continue
		}
		c.Received = append(c.Received, frame.Data)
		var greeting struct{ Params struct{ ClientID string } }
		if len(c.Received) == 1 && json.Unmarshal(frame.Data, &greeting) == nil {
			byID[greeting.Params.ClientID] = c
		}
	}
	return byID, nil
}
