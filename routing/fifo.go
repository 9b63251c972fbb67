package routing

// A fifo is a queue. The zero value is empty.
type fifo[T any] struct {
	buf  []T
	head int
}

func (q *fifo[T]) len() int { return len(q.buf) - q.head }

func (q *fifo[T]) push(v T) {
	if q.head > 16 && q.head > len(q.buf)/2 {
		n := copy(q.buf, q.buf[q.head:])
		clear(q.buf[n:])
		q.buf, q.head = q.buf[:n], 0
	}
	q.buf = append(q.buf, v)
}

// at returns a pointer to the i-th element from the front, valid until the next push or pop.
func (q *fifo[T]) at(i int) *T { return &q.buf[q.head+i] }

func (q *fifo[T]) pop() T {
	v := q.buf[q.head]
	clear(q.buf[q.head : q.head+1])
	q.head++
	if q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
		// Free the memory of a long queue, and of a queue that is rarely used.
		if cap(q.buf) > 1024 || cap(q.buf) <= 4 {
			q.buf = nil
		}
	}
	return v
}
