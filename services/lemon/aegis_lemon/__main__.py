from aegis_lemon.service import main

if __name__ == "__main__":
    raise SystemExit(main())
