"""The types that the package promises with py.typed."""
import os
import subprocess
import unittest

import tq

HERE = os.path.dirname(os.path.abspath(__file__))


class Types(unittest.TestCase):
    def test_a_strict_checker_accepts_the_package_and_its_callers(self):
        site = os.path.dirname(os.path.dirname(tq.__file__))
        self.assertTrue(os.path.exists(os.path.join(site, "tq", "py.typed")), "py.typed is installed")
        for arguments in (["-p", "tq"], [os.path.join(HERE, "typed.py")]):
            checked = subprocess.run(["/usr/bin/python3", "-m", "mypy", "--strict", "--cache-dir", os.path.join(os.environ["TQ_WORK"], "mypy"), *arguments],
                                     env={**os.environ, "MYPYPATH": site}, capture_output=True, text=True, check=False)
            self.assertEqual((checked.stdout.splitlines()[-1][:7], checked.returncode), ("Success", 0), checked.stdout + checked.stderr)
