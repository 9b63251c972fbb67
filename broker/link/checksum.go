package link

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged reports a packet that was changed on its way, or that the peer has not
// sent.
var errDamaged = errors.New("packet with a bad tag or checksum")

// Sum returns the CRC-32C of data. It is needed for NATS connections without TLS,
// which do not notice changed bytes: TCP's checksum is weak, and a proxy computes it
// anew.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

func appendSum(packet []byte) []byte { return binary.BigEndian.AppendUint32(packet, Sum(packet)) }

// cutSum removes and checks the checksum of a packet. It returns errDamaged if the
// checksum does not match.
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

// A damage counts a reader's damaged messages, and logs them at most once per
// damageEvery. It is not safe for concurrent use.
type damage struct {
	log   *slog.Logger
	count int
	line  rate.Sometimes
}

func newDamage(log *slog.Logger) damage {
	return damage{log: log, line: rate.Sometimes{Interval: damageEvery}}
}

func (d *damage) note(subject string) {
	d.count++
	d.line.Do(func() {
		d.log.Warn("damaged message dropped", "subject", subject, "dropped", d.count, "hint", "use TLS between relay and host-agent")
	})
}
