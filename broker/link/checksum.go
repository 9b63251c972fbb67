package link

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// sumSize is the size of a checksum in bytes.
const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged reports a packet that changed on its way, or does not come from the peer.
var errDamaged = errors.New("packet with a bad tag or checksum")

// Sum returns the CRC-32C of data. A NATS connection without TLS detects no changed
// bytes: TCP's own checksum is weak, and a proxy computes it anew.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// appendSum appends the checksum of a packet.
func appendSum(packet []byte) []byte { return binary.BigEndian.AppendUint32(packet, Sum(packet)) }

// cutSum removes the checksum of a packet. The error is errDamaged if it does not
// match.
func cutSum(packet []byte) ([]byte, error) {
	if len(packet) < sumSize {
		return nil, errDamaged
	}
	body := packet[:len(packet)-sumSize]
	if binary.BigEndian.Uint32(packet[len(body):]) != Sum(body) {
		return nil, errDamaged
	}
	return body, nil
}

// damageEvery is the interval between log lines about damaged messages.
const damageEvery = time.Minute

// A damage counts the damaged messages of a reader, and reports them in its log. It is
// not safe for concurrent use.
type damage struct {
	log   *slog.Logger
	count int
	line  rate.Sometimes
}

func newDamage(log *slog.Logger) damage {
	return damage{log: log, line: rate.Sometimes{Interval: damageEvery}}
}

// note counts a damaged message.
func (d *damage) note(subject string) {
	d.count++
	d.line.Do(func() {
		d.log.Warn("message with a bad checksum dropped; its sender repeats it. The network between relay and host-agent changes bytes: use TLS", "subject", subject, "dropped", d.count)
	})
}
