"""A program: pyghmi's own BMC on 127.0.0.1, whose power comes from the simulated BMC.

    python tests/simulated/lan_bmc.py WATTS

Listens on a free port and prints it. User `power`, password `geheim`. Commands on standard input:
`watts N`, `silent on`, `silent off` (no answers while on), `die` (exit during the next request),
`dcmi off`. Each is confirmed by a line.
"""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))

from pyghmi.ipmi.bmc import Bmc

from tests.simulated.bmc import WATTS, SimulatedBmc, full_record, other_record

RECORDS = (
    other_record(),
    full_record("PS1 Input Power", 2, unit=WATTS, m=4),
    full_record("PS2 Input Power", 3, unit=WATTS, m=4),
)


class LanBmc(Bmc):
    """Sends raw requests to the simulated BMC."""

    def __init__(self, simulated):
        super().__init__({"power": "geheim"}, port=0, address="127.0.0.1")
        self.port = self.serversocket.getsockname()[1]  # pyghmi looks up sessions by port
        self.simulated = simulated
        self.silent = False
        self.dying = False

    def sessionless_data(self, data, sockaddr):
        """Reject everything but RAKP-HMAC-SHA1, the only algorithm that the server implements."""
        data = bytearray(data)
        is_open_session = len(data) >= 32 and data[4] == 6 and data[5] & 0x3F == 0x10
        if is_open_session and data[28] != 1:
            reply = bytearray((data[16], 0x11, 0, 0)) + data[20:24]
            header = bytearray(b"\x06\x00\xff\x07\x06\x11") + bytes(8)
            header += len(reply).to_bytes(2, "little")
            self.serversocket.sendto(header + reply, sockaddr)
            return
        super().sessionless_data(data, sockaddr)

    def handle_raw_request(self, request, session):
        if self.dying:
            os._exit(0)
        if self.silent:
            return
        netfn, command = request["netfn"], request["command"]
        if netfn == 6:
            super().handle_raw_request(request, session)
            return
        answer = self.simulated.answer(netfn, command, bytes(request["data"]))
        session.send_ipmi_response(data=list(answer[1:]), code=answer[0])


def execute_commands(bmc):
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "watts":
            bmc.simulated.watts = int(argument)
        elif command == "silent":
            bmc.silent = argument == "on"
        elif command == "die":
            bmc.dying = True
        elif command == "dcmi":
            bmc.simulated.dcmi = argument != "off"
        print("done", flush=True)
    os._exit(0)


def main():
    watts = int(sys.argv[1])
    bmc = LanBmc(SimulatedBmc(watts, records=RECORDS, readings={2: 50, 3: 36}))
    threading.Thread(target=execute_commands, args=(bmc,), daemon=True).start()
    print(bmc.port, flush=True)
    bmc.listen()


if __name__ == "__main__":
    main()
